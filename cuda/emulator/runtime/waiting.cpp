// Where threads wait: block barriers, named barriers and warp operations, whose last one in does the work for all; and
// for copies of cp.async. An odd seed copies as late as the waits allow, an even one at issue: the hardware may do both.
#include <cstdio>
#include <cstring>

#include "block.h"

namespace emulator {
namespace {

std::string at(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }

Rendezvous& meeting_of(Block& block, const Thread& thread, const WarpCall& call) {
    auto& meetings = block.meetings[thread.warp];
    for (Rendezvous& meeting : meetings) {
        if (meeting.mask != call.mask) continue;
        const WarpCall* const other = meeting.calls[__builtin_ctz(meeting.arrived)];
        if (other->site.line != call.site.line || other->operation != call.operation)
            block.fail("divergent-warp", std::string(call.operation) + " at " + at(call.site) + " and " +
                       other->operation + " at " + at(other->site) + " meet with the same mask", call.site);
        return meeting;
    }
    meetings.push_back({});
    meetings.back().mask = call.mask;
    return meetings.back();
}

void check_barrier(Block& block, const Barrier& barrier, unsigned id, unsigned count, const char* operation,
                   Site site) {
    if (barrier.arrived == 0) return;
    if (barrier.expected != count)
        block.fail("barrier-misuse", "barrier " + std::to_string(id) + " is awaited with " + std::to_string(count) +
                   " and with " + std::to_string(barrier.expected) + " threads", site);
    if (count == 0 && (barrier.site.line != site.line || barrier.operation != operation))
        block.fail("divergent-barrier", std::string(operation) + " at " + at(site) + " and " + barrier.operation +
                   " at " + at(barrier.site) + " meet", site);
}

void perform(Block& block, unsigned rank, const AsyncCopy& copy) {
    if (block.late_copies) std::memcpy(copy.shared, copy.bytes, AsyncCopy::count);
    if (block.history) block.history->finish_copy(rank, copy);
}

}  // namespace

void warp_rendezvous(WarpCall& call) {
    Block& block = *current->block;
    FiberThread& thread = block.running();
    if ((call.mask >> thread.lane & 1u) == 0) {
        char text[96];
        snprintf(text, sizeof text, "%s: the calling lane %u is not in its mask %#x", call.operation, thread.lane,
                 call.mask);
        block.fail("warp-misuse", text, call.site);
    }
    Rendezvous& meeting = meeting_of(block, thread, call);
    meeting.calls[thread.lane] = &call;
    meeting.arrived |= 1u << thread.lane;
    if (meeting.arrived == (call.mask & block.live[thread.warp]))
        block.complete(meeting, thread.warp);
    block.suspend(State::at_warp_operation, call.operation, call.site, call.mask);
}

// All lanes, the last arriver too, go back to the queue: which of them runs first is the schedule's choice.
void Block::complete(Rendezvous& meeting, unsigned warp) {
    WarpCall* first = meeting.calls[__builtin_ctz(meeting.arrived)];
    if (first->compute != nullptr) first->compute(meeting.calls, meeting.arrived);
    if (history && first->compute == nullptr) {
        std::vector<unsigned> ranks;
        for (unsigned lanes = meeting.arrived; lanes != 0; lanes &= lanes - 1)
            ranks.push_back(warp * 32 + __builtin_ctz(lanes));
        history->synchronize(ranks);
    }
    for (unsigned lanes = meeting.arrived; lanes != 0; lanes &= lanes - 1) resume(warp * 32 + __builtin_ctz(lanes));
    auto& all = meetings[warp];
    all.erase(all.begin() + (&meeting - all.data()));
}

void block_barrier(unsigned id, unsigned count, bool wait, const char* operation, Site site) {
    Block& block = *current->block;
    FiberThread& thread = block.running();
    if (id > 15 || count % 32 != 0) block.fail("barrier-misuse", "barrier ids are 0-15, counts multiples of 32", site);
    Barrier& barrier = block.barriers[id];
    check_barrier(block, barrier, id, count, operation, site);
    barrier.expected = count;
    barrier.site = site;
    barrier.operation = operation;
    barrier.arrived += 1;
    barrier.members.push_back(thread.rank);
    if (wait) barrier.waiting.push_back(thread.rank);
    if (barrier.arrived == (count == 0 ? block.num_live : count)) block.release(id);
    if (wait) block.suspend(State::at_barrier, operation, site, 0);
}

void Block::release(unsigned id) {
    note_progress();
    Barrier& barrier = barriers[id];
    if (history) history->barrier(barrier.members, barrier.waiting, barrier.members.size() == num_threads);
    barrier.result = barrier.votes;
    barrier.votes = 0;
    barrier.arrived = 0;
    std::vector<unsigned> woken;
    woken.swap(barrier.waiting);
    barrier.members.clear();
    for (unsigned rank : woken) resume(rank);
}

unsigned block_vote(bool predicate, const char* operation, Site site) {
    Block& block = *current->block;
    block.barriers[0].votes += predicate;
    block_barrier(0, 0, true, operation, site);
    return block.barriers[0].result;
}

void async_copy(void* shared, const void* global, unsigned source_bytes, Site site) {
    Block& block = *current->block;
    FiberThread& thread = block.running();
    if (reinterpret_cast<std::uintptr_t>(shared) % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0)
        block.fail("misaligned", "cp.async needs both addresses aligned to 16 bytes", site);
    AsyncCopy copy{static_cast<unsigned char*>(shared), {}, global, source_bytes, site};
    if (block.history) {
        Conflict conflict = block.history->begin_copy(thread.rank, copy);
        if (conflict.kind != nullptr) block.fail_conflict(thread.rank, conflict, code_of(site));
    }
    std::memcpy(copy.bytes, global, source_bytes);
    if (!block.late_copies) std::memcpy(copy.shared, copy.bytes, AsyncCopy::count);
    thread.open_group.push_back(copy);
}

void async_commit() {
    FiberThread& thread = current->block->running();
    if (thread.groups.empty() && thread.open_group.empty()) return;  // such a group is complete, and the oldest
    thread.groups.push_back({});
    thread.groups.back().swap(thread.open_group);
}

void async_wait(unsigned pending_groups) {
    Block& block = *current->block;
    FiberThread& thread = block.running();
    while (thread.groups.size() > pending_groups) {
        for (const AsyncCopy& copy : thread.groups.front()) perform(block, thread.rank, copy);
        thread.groups.erase(thread.groups.begin());
    }
}

}  // namespace emulator

// What each thread of a block knows of the others, of other blocks, devices and processes, and how it comes to know it.
#include <algorithm>

#include "block.h"
#include "ledger.h"
#include "race.h"

namespace emulator {
namespace {

bool knows_launch(const Foreign& foreign, GlobalName stream, std::uint32_t sequence) {
    auto found = foreign.launches.find(stream);
    return found != foreign.launches.end() && sequence <= found->second;
}

bool knows_thread(const Foreign& foreign, GlobalName thread, std::uint32_t time) {
    auto after = foreign.blocks.upper_bound(thread);
    if (after == foreign.blocks.begin()) return false;
    const auto& [base, clocks] = *std::prev(after);
    return thread - base < clocks->size() && time <= (*clocks)[thread - base];
}

}  // namespace

BlockHistory::BlockHistory(Launch& launch, Worker& worker, Index3 index, unsigned char* dynamic_shared)
    : launch_(launch),
      worker_(worker),
      run_(add_block_run(launch, index)),
      dynamic_shared_(dynamic_shared),
      static_shadow_(worker.static_shared_bytes),
      dynamic_shadow_(launch.request().shared_bytes),
      now_(run_.num_threads, 1),
      base_(run_.num_threads, 0),
      known_(run_.num_threads),
      foreign_(run_.num_threads),
      fenced_(run_.num_threads),
      seen_(run_.num_threads),
      acquired_(run_.num_threads),
      looked_(run_.num_threads) {}

BlockHistory::~BlockHistory() {
    if (!any_foreign_) return;
    for (const Foreign& foreign : foreign_) launch_.add_learned(foreign);
}

Clocks& BlockHistory::known(unsigned rank) {
    if (known_[rank].empty()) known_[rank].resize(run_.num_threads, 0);
    return known_[rank];
}

void BlockHistory::synchronize(const std::vector<unsigned>& ranks) {
    barrier(ranks, ranks, ranks.size() == run_.num_threads);
}

void BlockHistory::barrier(const std::vector<unsigned>& members, const std::vector<unsigned>& waiting,
                           bool whole_block) {
    if (whole_block && waiting.size() == members.size()) {
        for (unsigned rank = 0; rank < run_.num_threads; ++rank) base_[rank] = now_[rank]++;
    } else {
        Clocks joined(run_.num_threads, 0);
        for (unsigned rank : members) {
            if (!known_[rank].empty()) join(joined, known_[rank]);
            joined[rank] = std::max(joined[rank], now_[rank]);
        }
        for (unsigned rank : waiting) join(known(rank), joined);
        for (unsigned rank : members) ++now_[rank];
    }
    if (!any_foreign_) return;
    Foreign joined;
    for (unsigned rank : members) join(joined, foreign_[rank]);
    for (unsigned rank : waiting) foreign_[rank] = joined;
}

bool BlockHistory::is_ordered(unsigned rank, const Stamp& stamp, const Place& place) const {
    const Ledger* ledger = place.shadow->ledger();
    if (ledger != nullptr && stamp.slot != ledger->slot()) return is_ordered_elsewhere(rank, stamp, *ledger);
    std::uint32_t other = stamp.thread - run_.base;
    if (other < run_.num_threads) {
        if (other == rank || stamp.time <= base_[other]) return true;
        return !known_[rank].empty() && stamp.time <= known_[rank][other];
    }
    if (stamp.thread < oldest_thread()) return true;
    BlockRun run = block_run_of(stamp.thread);
    return run.sequence <= at(launch_.ticket().after, run.stream) ||
           knows_launch(rank, global_name(run.stream), run.sequence) ||
           knows_thread(rank, global_name(stamp.thread), stamp.time);
}

// What the other process's host has waited for counts as ordered: the hosts talk in ways that are not seen here.
bool BlockHistory::is_ordered_elsewhere(unsigned rank, const Stamp& stamp, const Ledger& ledger) const {
    std::uint32_t process = ledger.process_of(stamp.slot);
    if (knows_thread(rank, global_name(process, stamp.thread), stamp.time)) return true;
    std::optional<BlockRun> run = ledger.run_of(stamp.slot, stamp.thread);
    return !run.has_value() || ledger.has_host_waited(stamp.slot, *run) ||
           knows_launch(rank, global_name(process, run->stream), run->sequence);
}

bool BlockHistory::knows_launch(unsigned rank, GlobalName stream, std::uint32_t sequence) const {
    return emulator::knows_launch(foreign_[rank], stream, sequence) ||
           emulator::knows_launch(launch_.inherited(), stream, sequence);
}

bool BlockHistory::knows_thread(unsigned rank, GlobalName thread, std::uint32_t time) const {
    return emulator::knows_thread(foreign_[rank], thread, time) ||
           emulator::knows_thread(launch_.inherited(), thread, time);
}

// With what its launch waited for: who acquires this knows of launches that ended before.
Knowledge BlockHistory::snapshot(unsigned rank, bool system_scope) {
    auto mine = std::make_shared<Clocks>(base_);
    if (!known_[rank].empty()) join(*mine, known_[rank]);
    (*mine)[rank] = now_[rank];
    Knowledge knowledge{launch_.inherited(), run_.device, system_scope};
    join(knowledge.known, foreign_[rank]);
    knowledge.known.blocks[global_name(run_.base)] = mine;
    const StreamClock& after = launch_.ticket().after;
    for (std::uint32_t stream = 0; stream < after.size(); ++stream)
        if (after[stream] != 0) {
            auto& sequence = knowledge.known.launches[global_name(stream)];
            sequence = std::max(sequence, after[stream]);
        }
    ++now_[rank];
    return knowledge;
}

// Between devices only system scope orders, on both sides.
void BlockHistory::learn(unsigned rank, const Knowledge& knowledge, bool system_scope) {
    if (knowledge.device != run_.device && !(knowledge.system_scope && system_scope)) return;
    Foreign others = knowledge.known;
    if (auto own = others.blocks.find(global_name(run_.base)); own != others.blocks.end()) {
        join(known(rank), *own->second);
        others.blocks.erase(own);
    }
    any_foreign_ = true;
    join(foreign_[rank], others);
}

void BlockHistory::release(unsigned rank, std::uintptr_t flag, bool system_scope, unsigned value) {
    Knowledge knowledge = snapshot(rank, system_scope);
    knowledge.has_value = true;
    knowledge.value = value;
    release_by_store(flag, knowledge);
}

void BlockHistory::acquire(unsigned rank, std::uintptr_t flag, bool system_scope, unsigned value) {
    Look& last = acquired_[rank];
    if (last.flag != flag || last.value != value || last.system_scope != system_scope)
        last = {flag, value, system_scope, 0};
    for (const Knowledge& knowledge : released_at(flag, last.version))
        if (!knowledge.has_value || knowledge.value == value) learn(rank, knowledge, system_scope);
}

void BlockHistory::relaxed(unsigned rank, std::uintptr_t flag, bool system_scope) {
    if (!fenced_[rank]) return;
    Knowledge knowledge = *fenced_[rank];
    knowledge.system_scope = knowledge.system_scope && system_scope;
    release_by_update(flag, knowledge);
}

void BlockHistory::see(unsigned rank, std::uintptr_t flag) {
    Look& last = looked_[rank];
    if (last.flag != flag) last = {flag};
    for (Knowledge& knowledge : released_at(flag, last.version)) seen_[rank].push_back(std::move(knowledge));
}

void BlockHistory::fence(unsigned rank, bool system_scope) {
    for (const Knowledge& knowledge : seen_[rank]) learn(rank, knowledge, system_scope);
    seen_[rank].clear();
    looked_[rank] = {};
    fenced_[rank] = std::make_unique<Knowledge>(snapshot(rank, system_scope));
}

}  // namespace emulator

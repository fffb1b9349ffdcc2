// cp.async: an odd seed copies as late as the waits allow, an even one at issue. Both are what the hardware may do.
#include <cstring>

#include "block.h"

namespace emulator {
namespace {

void perform(Block& block, unsigned rank, const AsyncCopy& copy) {
    if (block.late_copies) std::memcpy(copy.shared, copy.bytes, AsyncCopy::count);
    if (block.history) block.history->finish_copy(rank, copy);
}

}  // namespace

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

// What orders accesses in check mode: the threads that ran, and what each knew of the others when it released (kept by
// flag until others acquire it) or when its launch ended. Flags in memory that processes share are kept in its ledger.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "../include/emulator_abi.h"
#include "order.h"

namespace emulator {

class Launch;

// The threads `base` to `base + num_threads - 1` are one block of one launch.
struct BlockRun {
    std::uint32_t base;
    std::uint32_t num_threads;
    std::uint32_t stream;  // the launch's place in the host's order
    std::uint32_t sequence;
    std::uint32_t device;
    Index3 block;
    Index3 block_dim;
};

BlockRun add_block_run(const Launch& launch, Index3 block);
BlockRun block_run_of(std::uint32_t thread);
// Whoever is older ended before anything that may still run.
std::uint32_t oldest_thread();

constexpr std::size_t max_releases = 32;  // of one flag, kept; a reader is never further behind

// Threads and streams by name: those of this process and of others. Within a process they are ordered by number.
using GlobalName = std::uint64_t;
GlobalName global_name(std::uint32_t process, std::uint32_t number);
GlobalName global_name(std::uint32_t number);  // of this process

using Clocks = std::vector<std::uint32_t>;  // by rank in a block

// What a thread knows of other blocks: how far each of their threads is, and which launches have ended.
struct Foreign {
    std::map<GlobalName, std::shared_ptr<const Clocks>> blocks;  // by the block's first thread
    std::map<GlobalName, std::uint32_t> launches;                // by stream
};

void join(Foreign& into, const Foreign& from);

struct Knowledge {
    Foreign known;  // the releasing block's own clocks among them
    std::uint32_t device = 0;
    bool system_scope = false;
    bool has_value = false;  // released by a store of `value`; without one, by a read-modify-write
    unsigned value = 0;
};

// A store replaces what a reader of another value would learn; a read-modify-write goes on with what others released.
void release_by_store(std::uintptr_t flag, const Knowledge& knowledge);
void release_by_update(std::uintptr_t flag, const Knowledge& knowledge);

// What was released there, newest last; `version` is what the last call for this flag gave, and nothing is returned if
// nothing came since.
std::vector<Knowledge> released_at(std::uintptr_t flag, std::uint64_t& version);

// What launches learnt by acquiring: those that follow them in the host's order know it from their start.
std::shared_ptr<const Foreign> learned_before(const Ticket& ticket);
// Called when the launch has ended, before its stream goes on.
void keep_learned(const Ticket& ticket, Foreign learned);

// Everything that may still run waited for `horizon`; the host waited for `host`.
void forget_threads(const StreamClock& horizon, const StreamClock& host);

}  // namespace emulator

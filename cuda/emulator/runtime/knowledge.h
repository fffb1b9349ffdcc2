// What threads knew when they released, kept by flag until others acquire it. Flags in memory that processes share are
// kept in that memory's ledger.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "order.h"

namespace emulator {

constexpr std::size_t max_releases = 32;  // of one flag, kept; a reader is never further behind

// Actors and streams by name: those of this process and of others. Within a process they are ordered by number.
using GlobalName = std::uint64_t;
GlobalName global_name(std::uint32_t process, std::uint32_t number);
GlobalName global_name(std::uint32_t number);  // of this process

using Clocks = std::vector<std::uint32_t>;  // by rank in a block

// What a thread knows of other blocks: how far each of their threads is, and which launches have ended.
struct Foreign {
    std::map<GlobalName, std::shared_ptr<const Clocks>> blocks;  // by the block's first actor
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

// Drops what everything that may still run knows anyway.
void forget_releases();

}  // namespace emulator

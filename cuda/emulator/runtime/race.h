// The happens-before relation of one block's threads, and the checks that rest on it. Read `shadow.h` first.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors.h"
#include "launch.h"
#include "shadow.h"
#include "worker.h"

namespace emulator {

struct AsyncCopy;

using Clocks = std::vector<std::uint32_t>;                                        // by rank in a block
using Foreign = std::map<std::uint32_t, std::shared_ptr<const Clocks>>;          // by the other block's first actor

// All that one thread knew when it released: its own block's clocks under its own base, and those of others.
struct Knowledge {
    Foreign clocks;
    std::uint32_t device = 0;
    bool system_scope = false;
    bool has_value = false;  // released by a store of `value`; without one, by a read-modify-write
    unsigned value = 0;
};

// Forgets what was released; called when nothing runs.
void forget_releases();

struct Access {
    unsigned rank;
    std::uintptr_t address;
    unsigned bytes;
    bool read;
    bool write;
    bool atomic;
    std::uint64_t code;
};

struct Conflict {
    const char* kind = nullptr;  // null: none
    std::string message;
    std::uint64_t other_code = 0;
};

class BlockHistory {
  public:
    BlockHistory(Launch& launch, Worker& worker, Index3 index, unsigned char* dynamic_shared);

    // Each of `ranks` learns what any of them knew, and all they did.
    void synchronize(const std::vector<unsigned>& ranks);
    // As above, but only `waiting` learn; the other members only arrived.
    void barrier(const std::vector<unsigned>& members, const std::vector<unsigned>& waiting, bool whole_block);

    Conflict access(const Access& access);
    Conflict begin_copy(unsigned rank, const AsyncCopy& copy);
    void finish_copy(unsigned rank, const AsyncCopy& copy);

    void release(unsigned rank, std::uintptr_t address, bool system_scope, unsigned value);
    void acquire(unsigned rank, std::uintptr_t address, bool system_scope, unsigned value);
    // Relaxed atomics order nothing by themselves; with a fence before or after they do.
    void relaxed(unsigned rank, std::uintptr_t address, bool system_scope);
    void see(unsigned rank, std::uintptr_t address);
    void fence(unsigned rank, bool system_scope);

  private:
    struct Place {
        Shadow* shadow = nullptr;
        std::size_t offset = 0;
        bool initialised = false;
        const char* name = nullptr;
        const char* wrong = nullptr;  // the address is in no array, but near one
    };

    Place place_of(std::uintptr_t address, unsigned bytes);
    Conflict check_cell(const Access& access, const Place& place, Cell& cell, unsigned bytes);
    Conflict against(const char* kind, const Access& access, const Place& place, const Stamp& other) const;
    bool is_ordered(unsigned rank, const Stamp& stamp) const;
    Stamp stamp(const Access& access, unsigned bytes) const;
    void note_read(Cell& cell, const Stamp& stamp);
    Clocks& known(unsigned rank);
    Knowledge snapshot(unsigned rank, bool system_scope);
    void learn(unsigned rank, const Knowledge& knowledge, bool system_scope);

    Launch& launch_;
    Worker& worker_;
    BlockRun run_;
    std::uint32_t oldest_actor_;
    unsigned char* dynamic_shared_;
    Shadow static_shadow_;
    Shadow dynamic_shadow_;
    Clocks now_;
    Clocks base_;  // known to every thread of the block, by full barriers
    std::vector<Clocks> known_;
    std::vector<Foreign> foreign_;
    std::vector<std::unique_ptr<Knowledge>> fenced_;             // what a fence released, for the next atomic write
    std::vector<std::vector<Knowledge>> seen_;                    // what atomic reads saw, for the next fence
    bool any_foreign_ = false;
};

}  // namespace emulator

// The happens-before relation of one block's threads, and the checks that rest on it. Read `shadow.h` first.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "knowledge.h"
#include "launch.h"
#include "shadow.h"
#include "worker.h"

namespace emulator {

struct Allocation;
struct AsyncCopy;

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
    std::uint32_t other_process = 0;  // if not of this one
};

class BlockHistory {
  public:
    BlockHistory(Launch& launch, Worker& worker, Index3 index, unsigned char* dynamic_shared);
    ~BlockHistory();

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
        const Allocation* array = nullptr;  // null in shared memory
        const char* name = nullptr;
        const char* wrong = nullptr;  // the address is in no array, but near one
    };
    // What a flag gave a thread when it last looked, so that spinning on it costs little.
    struct Look {
        std::uintptr_t flag = 0;
        unsigned value = 0;
        bool system_scope = false;
        std::uint64_t version = 0;
    };

    Place place_of(std::uintptr_t address, unsigned bytes);
    Allocation* array_at(std::uintptr_t address);
    Conflict check_cell(const Access& access, const Place& place, Cell& cell, unsigned bytes);
    Conflict against(const char* kind, const Access& access, const Place& place, const Stamp& other) const;
    bool is_ordered(unsigned rank, const Stamp& stamp, const Place& place) const;
    bool is_ordered_elsewhere(unsigned rank, const Stamp& stamp, const Ledger& ledger) const;
    bool knows_launch(unsigned rank, GlobalName stream, std::uint32_t sequence) const;
    bool knows_thread(unsigned rank, GlobalName thread, std::uint32_t time) const;
    Stamp stamp(const Access& access, const Place& place, unsigned bytes) const;
    void note_read(Cell& cell, const Stamp& stamp, const Access& access, const Place& place);
    Clocks& known(unsigned rank);
    Knowledge snapshot(unsigned rank, bool system_scope);
    void learn(unsigned rank, const Knowledge& knowledge, bool system_scope);

    Launch& launch_;
    Worker& worker_;
    BlockRun run_;
    unsigned char* dynamic_shared_;
    Shadow static_shadow_;
    Shadow dynamic_shadow_;
    Clocks now_;
    Clocks base_;  // known to every thread of the block, by full barriers
    std::vector<Clocks> known_;
    std::vector<Foreign> foreign_;
    std::vector<std::unique_ptr<Knowledge>> fenced_;             // what a fence released, for the next atomic write
    std::vector<std::vector<Knowledge>> seen_;                    // what atomic reads saw, for the next fence
    std::vector<Look> acquired_;
    std::vector<Look> looked_;
    bool any_foreign_ = false;
    Allocation* last_array_ = nullptr;  // most accesses are to the array of the one before
    Shadow* last_shadow_ = nullptr;
    std::uint64_t last_version_ = 0;
};

}  // namespace emulator

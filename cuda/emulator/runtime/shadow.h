// Check mode's memory of memory: for every two bytes, the last write, two reads, and whether they were ever written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../include/emulator_abi.h"

namespace emulator {

// One access: who (an actor is one thread of one block of one launch), when on its clock, from where in the code.
struct Stamp {
    std::uint32_t actor = 0;  // 0: nobody
    std::uint32_t time = 0;
    std::uint64_t code : 60;
    std::uint64_t bytes : 2;  // which of the two
    std::uint64_t atomic : 1;
    std::uint64_t pending : 1;  // a cp.async that its thread has not waited for
    Stamp() : code(0), bytes(0), atomic(0), pending(0) {}
};

struct Cell {
    Stamp write;
    Stamp reads[2];  // of different warps if there are two; more readers than that are forgotten, never invented
    std::uint8_t written = 0;  // bit for each byte
};

// The cells of one array or of one block's shared memory, made in runs of 4 KiB when first touched.
struct Shadow {
    static constexpr std::size_t run_bytes = 4096;

    explicit Shadow(std::size_t bytes) : runs((bytes + run_bytes - 1) / run_bytes) {}

    Cell& cell(std::size_t offset) {
        auto& run = runs[offset / run_bytes];
        if (!run) run = std::make_unique<Cell[]>(run_bytes / 2);
        return run[offset % run_bytes / 2];
    }

    std::mutex guard;
    std::vector<std::unique_ptr<Cell[]>> runs;
};

// Where an access comes from, in the 60 bits of a stamp: a program counter, or the number of a source position.
std::uint64_t code_of(std::uintptr_t pc);
std::uint64_t code_of(Site site);
bool is_site(std::uint64_t code);
Site site_of(std::uint64_t code);

}  // namespace emulator

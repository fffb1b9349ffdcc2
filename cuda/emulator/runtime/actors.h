// Names every thread that ran in check mode and that something may still be unordered with.
#pragma once
#include <cstdint>

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
BlockRun block_run_of(std::uint32_t actor);
// Whoever is older ended before anything that may still run.
std::uint32_t oldest_actor();

// Everything that may still run waited for `horizon`; the host waited for `host`.
void forget_actors(const StreamClock& horizon, const StreamClock& host);

}  // namespace emulator

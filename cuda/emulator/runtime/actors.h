// Names every thread that ran in check mode since the host last waited for everything.
#pragma once
#include <cstdint>

#include "launch.h"

namespace emulator {

// The threads `base` to `base + num_threads - 1` are one block of one launch.
struct BlockRun {
    std::uint32_t base;
    std::uint32_t num_threads;
    std::uint32_t launch;  // its ticket, see order.h
    std::uint32_t device;
    Index3 block;
    Index3 block_dim;
};

// Called when the host has waited for all launches: none runs, and the next is ordered behind all of them.
void forget_actors();
// Whoever is older ran before the host waited for everything.
std::uint32_t oldest_actor();

BlockRun add_block_run(const Launch& launch, Index3 block);
BlockRun block_run_of(std::uint32_t actor);

}  // namespace emulator

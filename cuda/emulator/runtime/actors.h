// Names every thread that ever ran in check mode, and knows which launches ended before which began.
#pragma once
#include <cstdint>

#include "launch.h"

namespace emulator {

// The threads `base` to `base + num_threads - 1` are one block of one launch.
struct BlockRun {
    std::uint32_t base;
    std::uint32_t num_threads;
    std::uint32_t launch;
    std::uint32_t device;
    Index3 block;
    Index3 block_dim;
};

void begin_launch(std::uint32_t launch);
void end_launch(std::uint32_t launch);
// The host saw `earlier` end before it began `later`.
bool ended_before(std::uint32_t earlier, std::uint32_t later);

// Whoever is older ran before a moment when nothing ran: all that begins later is ordered behind it.
std::uint32_t oldest_actor();

BlockRun add_block_run(const Launch& launch, Index3 block);
BlockRun block_run_of(std::uint32_t actor);

}  // namespace emulator

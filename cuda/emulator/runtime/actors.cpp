#include "actors.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "race.h"

namespace emulator {
namespace {

std::mutex guard;
std::vector<BlockRun> runs;  // by base
std::uint32_t next_base = 1;
std::uint32_t oldest = 1;

}  // namespace

void forget_actors() {
    std::lock_guard<std::mutex> lock(guard);
    runs.clear();
    oldest = next_base;
    forget_releases();
}

std::uint32_t oldest_actor() {
    std::lock_guard<std::mutex> lock(guard);
    return oldest;
}

BlockRun add_block_run(const Launch& launch, Index3 block) {
    std::lock_guard<std::mutex> lock(guard);
    runs.push_back({next_base, launch.num_threads(), launch.id(), launch.request().device, block, launch.block()});
    next_base += launch.num_threads();
    return runs.back();
}

BlockRun block_run_of(std::uint32_t actor) {
    std::lock_guard<std::mutex> lock(guard);
    auto after = std::upper_bound(runs.begin(), runs.end(), actor,
                                  [](std::uint32_t wanted, const BlockRun& run) { return wanted < run.base; });
    return *std::prev(after);
}

}  // namespace emulator

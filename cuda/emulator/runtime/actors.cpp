#include "actors.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "race.h"

namespace emulator {
namespace {

constexpr std::uint64_t never = ~std::uint64_t{0};

struct Span {
    std::uint64_t begin;
    std::uint64_t end;
};

std::mutex guard;
std::uint64_t tick = 0;
int num_running = 0;
std::unordered_map<std::uint32_t, Span> spans;
std::vector<BlockRun> runs;  // by base
std::uint32_t next_base = 1;
std::uint32_t oldest = 1;

}  // namespace

void begin_launch(std::uint32_t launch) {
    std::lock_guard<std::mutex> lock(guard);
    if (num_running++ == 0) {  // all that ran before is ordered before all that comes
        spans.clear();
        runs.clear();
        oldest = next_base;
        forget_releases();
    }
    spans[launch] = {++tick, never};
}

void end_launch(std::uint32_t launch) {
    std::lock_guard<std::mutex> lock(guard);
    spans[launch].end = ++tick;
    --num_running;
}

bool ended_before(std::uint32_t earlier, std::uint32_t later) {
    std::lock_guard<std::mutex> lock(guard);
    return spans[earlier].end < spans[later].begin;
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

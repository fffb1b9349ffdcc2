#include "actors.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include "knowledge.h"
#include "launch.h"
#include "learned.h"
#include "ledger.h"

namespace emulator {
namespace {

std::mutex actors_guard;
std::deque<BlockRun> runs;  // by base
std::uint32_t next_base = 1;
std::atomic<std::uint32_t> oldest{1};

}  // namespace

BlockRun add_block_run(const Launch& launch, Index3 block) {
    std::lock_guard<std::mutex> lock(actors_guard);
    const Ticket& ticket = launch.ticket();
    runs.push_back({next_base, launch.num_threads(), ticket.stream, ticket.sequence, launch.request().device, block,
                    launch.block()});
    next_base += launch.num_threads();
    for (const auto& ledger : Ledger::all()) ledger->add_run(runs.back());
    return runs.back();
}

BlockRun block_run_of(std::uint32_t actor) {
    std::lock_guard<std::mutex> lock(actors_guard);
    auto after = std::upper_bound(runs.begin(), runs.end(), actor,
                                  [](std::uint32_t wanted, const BlockRun& run) { return wanted < run.base; });
    return *std::prev(after);
}

std::uint32_t oldest_actor() { return oldest.load(std::memory_order_relaxed); }

void forget_actors(const StreamClock& horizon, const StreamClock& host) {
    {
        std::lock_guard<std::mutex> lock(actors_guard);
        while (!runs.empty() && runs.front().sequence <= at(horizon, runs.front().stream)) runs.pop_front();
        oldest = runs.empty() ? next_base : runs.front().base;
        for (const auto& ledger : Ledger::all()) ledger->host_waited(host);
    }
    forget_releases();
    forget_learned(horizon);
}

}  // namespace emulator

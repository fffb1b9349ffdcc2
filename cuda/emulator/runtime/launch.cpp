// Blocks in shuffled order over one or more OS threads; all at once, each on its own, when the launch is cooperative.
#include "launch.h"

#include <cstdio>
#include <numeric>
#include <thread>
#include <vector>

#include "block.h"
#include "ledger.h"
#include "memory.h"
#include "worker.h"

namespace emulator {
namespace {

std::atomic<std::uint64_t> num_failures{0};
std::atomic<std::uint64_t> num_steps{0};

Index3 index_of(std::uint64_t linear, Index3 grid) {
    return {static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
            static_cast<unsigned>(linear / grid.x / grid.y)};
}

std::vector<std::uint32_t> shuffled(std::uint32_t count, Random random) {
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    for (std::uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

// The bytes behind an array are not watched; one look at them when all is done shows whether somebody wrote there.
void check_arguments(Launch& launch) {
    const LaunchRequest& request = launch.request();
    for (std::uint64_t i = 0; i < request.num_args; ++i) {
        if (request.kinds[i] != 'p') continue;
        auto pointer = *static_cast<std::uintptr_t*>(request.args[i]);
        if (is_left_whole(pointer, request.checked != 0)) continue;
        ErrorReport* report = launch.claim_report();
        if (report == nullptr) return;
        snprintf(report->kind, sizeof report->kind, "out-of-bounds");
        snprintf(report->message, sizeof report->message,
                 "bytes behind the end of the array that argument %u points into were written",
                 static_cast<unsigned>(i));
    }
}

}  // namespace

void note_progress() {
    num_steps.fetch_add(1, std::memory_order_relaxed);
    if (!Ledger::any()) return;
    for (const auto& ledger : Ledger::all()) ledger->note_progress();
}
std::uint64_t progress() { return num_steps.load(std::memory_order_relaxed); }

Launch::Launch(const LaunchRequest& request, ErrorReport& report)
    : request_(request), report_(report), failures_before_(num_failures.load()),
      number_(request.ticket != 0 ? request.ticket : submit_synchronous()), ticket_(ticket_of(number_)) {
    if (request.checked) inherited_ = learned_before(ticket_);
}

Launch::~Launch() {
    if (!learned_.blocks.empty() || !learned_.launches.empty()) {
        join(learned_, *inherited_);
        keep_learned(ticket_, std::move(learned_));
    }
    if (request_.ticket == 0) host_waits(number_);
}

ErrorReport* Launch::claim_report() {
    if (failed_.exchange(true)) return nullptr;
    ++num_failures;
    for (const auto& ledger : Ledger::all()) ledger->fail();
    return &report_;
}

void Launch::add_learned(const Foreign& learned) {
    std::lock_guard<std::mutex> lock(guard_);
    join(learned_, learned);
}

bool Launch::must_abort() const { return failed() || num_failures.load(std::memory_order_relaxed) != failures_before_; }

void run(Launch& launch) {
    Index3 grid = launch.grid();
    std::uint32_t num_blocks = grid.x * grid.y * grid.z;
    std::uint64_t seed = launch.request().seed;
    std::vector<std::uint32_t> order = shuffled(num_blocks, Random(seed));
    std::atomic<std::uint32_t> next{0};
    auto work = [&] {
        Worker& worker = Worker::of_this_os_thread();
        worker.take_static_shared(launch.request().shared_anchor);
        for (std::uint32_t at; !launch.failed() && (at = next++) < num_blocks;)
            Block(launch, worker, index_of(order[at], grid), seed ^ (order[at] * 0x9E3779B97F4A7C15ull)).run();
        current = nullptr;
    };
    std::uint32_t num_workers = launch.request().cooperative ? num_blocks : launch.request().num_workers;
    std::vector<std::thread> others;
    for (std::uint32_t i = 1; i < num_workers && i < num_blocks; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    if (!launch.failed()) check_arguments(launch);
}

}  // namespace emulator

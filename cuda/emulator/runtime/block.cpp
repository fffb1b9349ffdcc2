// The block scheduler: runs fibers until all are done, and says who waits where when they cannot go on.
#include "block.h"

#include <sched.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "ledger.h"
#include "memory.h"

namespace emulator {

__thread Thread* current __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

double monotonic_s() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void copy_text(char* to, std::size_t capacity, const std::string& text) {
    std::size_t length = std::min(capacity - 1, text.size());
    std::memcpy(to, text.data(), length);
    to[length] = 0;
}

std::string lanes_text(const std::vector<unsigned>& ranks) {
    std::string text;
    for (std::size_t i = 0; i < ranks.size();) {
        std::size_t end = i + 1;
        while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
        text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
        if (end > i + 1) text += "-" + std::to_string(ranks[end - 1]);
        i = end;
    }
    return text;
}

}  // namespace

Block::Block(Launch& launch_, Worker& worker_, Index3 index_, std::uint64_t seed)
    : launch(launch_),
      worker(worker_),
      index(index_),
      random(seed),
      num_threads(launch_.num_threads()),
      num_live(num_threads),
      threads(std::make_unique<FiberThread[]>(num_threads)),
      ready(static_cast<Order>(launch_.request().seed % 3), num_threads, random),
      meetings((num_threads + 31) / 32),
      live(meetings.size()),
      shared(worker_.dynamic_shared(launch_.request().shared_bytes)),
      late_copies(launch_.request().seed % 2 == 1) {
    std::memset(worker.static_shared, 0xFF, worker.static_shared_bytes);
    std::memset(shared, 0xFF, launch.request().shared_bytes);
    if (launch.request().checked) history = std::make_unique<BlockHistory>(launch, worker, index, shared);
}

void Block::run() {
    start_threads();
    if (int signal = sigsetjmp(worker.landing, 1); signal != 0) {
        on_fault(signal);
        return;
    }
    loop();
}

void Block::start_threads() {
    Index3 dim = launch.block();
    for (unsigned rank = 0; rank < num_threads; ++rank) {
        FiberThread& thread = threads[rank];
        thread.thread_index = {rank % dim.x, rank / dim.x % dim.y, rank / dim.x / dim.y};
        thread.block_index = index;
        thread.block_dim = dim;
        thread.grid_dim = launch.grid();
        thread.rank = rank;
        thread.lane = rank % 32;
        thread.warp = rank / 32;
        thread.block = this;
        live[thread.warp] |= 1u << thread.lane;
        worker.mark_stack(rank);
        prepare(thread.fiber, worker.stack_of(rank), Worker::stack_bytes, thread_main);
        ready.push(rank);
    }
}

void Block::loop() {
    while (num_live > 0) {
        if (ready.empty() && !wake_spinners()) return;
        FiberThread& thread = threads[ready.pop()];
        current = &thread;
        worker.in_fiber = true;
        switch_fiber(worker.scheduler, thread.fiber);
        worker.in_fiber = false;
        if (aborting) return;
        if (!worker.stack_is_whole(thread.rank)) {
            report("stack-overflow", "a thread used more than its 128 KiB of stack", &thread, thread.site, 0, 0);
            return;
        }
    }
}

void thread_main() {
    FiberThread& thread = static_cast<FiberThread&>(*current);
    Block& block = *thread.block;
    block.launch.request().entry(block.launch.request().args);
    async_commit();
    async_wait(0);
    thread.state = State::done;
    block.live[thread.warp] &= ~(1u << thread.lane);
    --block.num_live;
    block.idle_rounds_ = 0;
    note_progress();
    // An exited thread counts as arrived: whoever waited only for it goes on.
    auto& meetings = block.meetings[thread.warp];
    for (std::size_t i = 0; i < meetings.size(); ++i)
        if (meetings[i].arrived == (meetings[i].mask & block.live[thread.warp])) {
            block.complete(meetings[i], thread.warp);
            i = static_cast<std::size_t>(-1);
        }
    for (unsigned id = 0; id < 16; ++id) {
        Barrier& barrier = block.barriers[id];
        if (barrier.arrived > 0 && barrier.expected == 0 && barrier.arrived == block.num_live) block.release(id);
    }
    switch_fiber(thread.fiber, block.worker.scheduler);
    __builtin_unreachable();
}

void Block::suspend(State state, const char* operation, Site site, unsigned mask) {
    FiberThread& thread = running();
    thread.state = state;
    thread.operation = operation;
    thread.site = site;
    thread.mask = mask;
    if (state == State::spinning)
        spinning.push_back(thread.rank);
    else
        idle_rounds_ = 0;
    switch_fiber(thread.fiber, worker.scheduler);
}

void Block::resume(unsigned rank) {
    threads[rank].state = State::ready;
    ready.push(rank);
}

// Spinning threads run only when nobody else can. When nobody but they can run for long, nobody will let them go.
bool Block::wake_spinners() {
    if (spinning.empty()) {
        report("deadlock", "no thread of the block can go on:\n" + where_everyone_waits(), nullptr, threads[0].site, 0,
               0);
        return false;
    }
    if (++idle_rounds_ == 1) last_progress_s_ = monotonic_s();
    if (idle_rounds_ > 8) sched_yield();
    if (idle_rounds_ % 64 == 0) {
        std::vector<Ledger*> ledgers = spun_on();
        if (must_abort(ledgers)) {
            report("aborted", "this one spins, and a launch that it may wait for has failed:\n" + where_everyone_waits(),
                   nullptr, threads[0].site, 0, 0);
            return false;
        }
        std::uint64_t seen = progress();
        for (const Ledger* ledger : ledgers) seen += ledger->progress();
        if (seen != last_progress_) last_progress_s_ = monotonic_s();
        last_progress_ = seen;
        if (monotonic_s() - last_progress_s_ > launch.request().watchdog_s) {
            report("watchdog", "only spinning threads are left, and none got on:\n" + where_everyone_waits(), nullptr,
                   threads[0].site, 0, 0);
            return false;
        }
    }
    std::vector<unsigned> woken;
    woken.swap(spinning);
    for (unsigned rank : woken) resume(rank);
    return true;
}

std::vector<Ledger*> Block::spun_on() const {
    std::vector<Ledger*> ledgers;
    for (unsigned rank : spinning) {
        Allocation* array = allocation_of(reinterpret_cast<std::uintptr_t>(threads[rank].flag));
        bool is_shared = array != nullptr && array->ledger != nullptr;
        if (is_shared && (ledgers.empty() || ledgers.back() != array->ledger.get()))
            ledgers.push_back(array->ledger.get());
    }
    return ledgers;
}

// Processes that share the memory of a flag that is spun on are one crash domain.
bool Block::must_abort(const std::vector<Ledger*>& ledgers) const {
    const auto has_failed = [](const Ledger* ledger) { return ledger->has_failed(); };
    return launch.must_abort() || std::any_of(ledgers.begin(), ledgers.end(), has_failed);
}

void Block::on_fault(int signal) {
    worker.in_fiber = false;
    FiberThread& thread = running();
    const char* kind = "memory-fault";
    char message[96];
    auto address = static_cast<unsigned long>(worker.fault_address);
    snprintf(message, sizeof message, "access to %#lx, outside of every array", address);
    if (signal == SIGFPE || signal == SIGILL) {  // GCC puts an illegal instruction where an error is certain
        kind = signal == SIGFPE ? "arithmetic" : "trap";
        snprintf(message, sizeof message, "%s", signal == SIGFPE ? "integer division by zero or overflow" : "trapped");
    }
    report(kind, message, &thread, thread.site, worker.fault_pc, 0);
}

void Block::fail(const char* kind, const std::string& message, Site site) { fail(kind, message, site, *current, 0, 0, 0); }

void Block::fail(const char* kind, const std::string& message, Site site, const Thread& thread, std::uintptr_t pc,
                 std::uintptr_t other_pc, std::uint32_t other_process) {
    report(kind, message, &thread, site, pc, other_pc, other_process);
    switch_fiber(running().fiber, worker.scheduler);
    __builtin_unreachable();
}

void Block::report(const char* kind, const std::string& message, const Thread* thread, Site site, std::uintptr_t pc,
                   std::uintptr_t other_pc, std::uint32_t other_process) {
    aborting = true;
    ErrorReport* out = launch.claim_report();
    if (out == nullptr) return;
    copy_text(out->kind, sizeof out->kind, kind);
    copy_text(out->message, sizeof out->message, message);
    copy_text(out->file, sizeof out->file, site.file == nullptr ? "" : site.file);
    out->line = site.line;
    out->block[0] = index.x, out->block[1] = index.y, out->block[2] = index.z;
    out->has_thread = thread != nullptr;
    if (thread != nullptr)
        out->thread[0] = thread->thread_index.x, out->thread[1] = thread->thread_index.y,
        out->thread[2] = thread->thread_index.z;
    out->pc = pc;
    out->other_pc = other_pc;
    out->other_process = other_process;
}

std::string Block::where_everyone_waits() const {
    std::string text;
    std::vector<bool> told(num_threads);
    for (unsigned rank = 0; rank < num_threads; ++rank) {
        const FiberThread& first = threads[rank];
        if (told[rank] || first.state == State::done) continue;
        std::vector<unsigned> alike;
        for (unsigned other = rank; other < num_threads; ++other) {
            const FiberThread& thread = threads[other];
            bool same = thread.state == first.state && thread.operation == first.operation &&
                        thread.site.line == first.site.line && thread.mask == first.mask;
            if (!same) continue;
            told[other] = true;
            alike.push_back(other);
        }
        char mask[32] = "";
        if (first.state == State::at_warp_operation) snprintf(mask, sizeof mask, " mask %#x", first.mask);
        text += "  threads " + lanes_text(alike) + ": " + first.operation + mask + " at " +
                (first.site.file == nullptr ? "?" : first.site.file) + ":" + std::to_string(first.site.line) + "\n";
    }
    if (num_live < num_threads) text += "  " + std::to_string(num_threads - num_live) + " threads have exited\n";
    return text;
}

void fail(const char* kind, const char* message, Site site) { current->block->fail(kind, message, site); }

void fail_lane(const char* kind, const char* operation, unsigned lane, Site site) {
    current->block->fail(kind, std::string(operation) + " reads lane " + std::to_string(lane) +
                         ", which is not in the mask, absent, or has exited", site);
}

void spin_point(const char* operation, Site site, const void* flag) {
    current->block->running().flag = flag;
    current->block->suspend(State::spinning, operation, site, 0);
}

unsigned char* dynamic_shared() { return current->block->shared; }

unsigned long long nanoseconds() { return static_cast<unsigned long long>(monotonic_s() * 1e9); }

}  // namespace emulator

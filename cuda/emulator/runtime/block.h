// One thread block: its CUDA threads as fibers on one OS thread, its barriers, its warps.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"
#include "launch.h"
#include "race.h"
#include "schedule.h"
#include "worker.h"

namespace emulator {

class Ledger;

enum class State : std::uint8_t { ready, spinning, at_barrier, at_warp_operation, done };

struct AsyncCopy {
    static constexpr unsigned count = 16;

    unsigned char* shared;
    unsigned char bytes[count];  // what the source held at issue: a later write to it is a race of its own
    const void* global;
    unsigned source_count;
    Site site;
};

struct FiberThread : Thread {
    Fiber fiber;
    State state = State::ready;
    const char* operation = "start";
    Site site{nullptr, 0};
    unsigned mask = 0;
    const void* flag = nullptr;  // that it last let others run for
    std::vector<std::vector<AsyncCopy>> groups;  // committed and not yet waited for, oldest first
    std::vector<AsyncCopy> open_group;
};

struct Barrier {
    unsigned expected = 0;
    unsigned arrived = 0;
    unsigned votes = 0;
    unsigned result = 0;
    Site site{nullptr, 0};
    const char* operation = nullptr;
    std::vector<unsigned> waiting;
    std::vector<unsigned> members;  // waiters and those that only arrived
};

struct Rendezvous {
    unsigned mask = 0;
    unsigned arrived = 0;
    WarpCall* calls[32] = {};
};

struct Block {
    Block(Launch& launch, Worker& worker, Index3 index, std::uint64_t seed);

    void run();

    // What a kernel reads as threadIdx and its like, and its stack: its own, and no array's.
    bool is_private(std::uintptr_t address) const {
        return address - reinterpret_cast<std::uintptr_t>(threads.get()) < num_threads * sizeof(FiberThread) ||
               address == reinterpret_cast<std::uintptr_t>(&current) || worker.on_stacks(address);
    }
    FiberThread& running() { return static_cast<FiberThread&>(*current); }
    // Gives the OS thread to the next runnable CUDA thread; returns when `thread` is runnable again.
    void suspend(State state, const char* operation, Site site, unsigned mask);
    void resume(unsigned rank);
    void complete(Rendezvous& meeting, unsigned warp);
    void release(unsigned id);
    [[noreturn]] void fail_conflict(unsigned rank, const Conflict& conflict, std::uint64_t code);
    [[noreturn]] void fail(const char* kind, const std::string& message, Site site);
    [[noreturn]] void fail(const char* kind, const std::string& message, Site site, const Thread& thread,
                           std::uintptr_t pc, std::uintptr_t other_pc, std::uint32_t other_process);

    Launch& launch;
    Worker& worker;
    Index3 index;
    Random random;
    unsigned num_threads;
    unsigned num_live;
    std::unique_ptr<FiberThread[]> threads;
    ReadyQueue ready;
    std::vector<unsigned> spinning;
    Barrier barriers[16];
    std::vector<std::vector<Rendezvous>> meetings;  // by warp
    std::vector<unsigned> live;                     // lanes, by warp
    unsigned char* shared;
    bool late_copies;
    bool aborting = false;
    std::unique_ptr<BlockHistory> history;  // check mode only

  private:
    void start_threads();
    void loop();
    bool wake_spinners();
    // Those of the flags that are spun on.
    std::vector<Ledger*> spun_on() const;
    bool must_abort(const std::vector<Ledger*>& ledgers) const;
    void on_fault(int signal);
    void report(const char* kind, const std::string& message, const Thread* thread, Site site, std::uintptr_t pc,
                std::uintptr_t other_pc, std::uint32_t other_process = 0);
    std::string where_everyone_waits() const;

    std::uint64_t last_progress_ = 0;
    double last_progress_s_ = 0;
    unsigned idle_rounds_ = 0;
    friend void thread_main();
};

void thread_main();

}  // namespace emulator

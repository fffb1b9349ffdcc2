// What one OS thread needs to run blocks: stacks for their fibers, dynamic shared memory, a place to land on faults.
#pragma once
#include <csetjmp>
#include <cstddef>
#include <cstdint>

#include "fiber.h"

namespace emulator {

constexpr std::size_t max_threads = 1024;
constexpr std::size_t max_shared_bytes = 256 << 10;

class Worker {
  public:
    static Worker& of_this_os_thread();
    static Worker* existing();

    unsigned char* stack_of(unsigned rank) const { return stacks_ + rank * stack_bytes; }
    bool stack_is_whole(unsigned rank) const;
    void mark_stack(unsigned rank) const;
    bool on_stacks(std::uintptr_t address) const {
        return address - reinterpret_cast<std::uintptr_t>(stacks_) < stack_bytes * max_threads;
    }

    bool in_shared_mapping(std::uintptr_t address) const {
        return address - reinterpret_cast<std::uintptr_t>(shared_) < max_shared_bytes;
    }

    // `__shared__` variables are thread-local ones: finds this OS thread's copy of a module's. `anchor` returns the address
    // of one of them, which also makes the copy exist.
    void take_static_shared(void* (*anchor)());

    // Dynamic shared memory ends where an inaccessible page begins.
    unsigned char* dynamic_shared(std::uint32_t bytes) const { return shared_end_ - (bytes + 15u) / 16u * 16u; }

    // Not a power of two: the tops of all stacks would fall into the same few cache lines.
    static constexpr std::size_t stack_bytes = (128 << 10) + 17 * 64;

    Fiber scheduler{};
    unsigned char* static_shared = nullptr;
    std::size_t static_shared_bytes = 0;
    sigjmp_buf landing{};
    volatile bool in_fiber = false;
    volatile std::uintptr_t fault_address = 0;
    volatile std::uintptr_t fault_pc = 0;

    Worker();
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

  private:
    unsigned char* stacks_;
    unsigned char* shared_;
    unsigned char* shared_end_;
    unsigned char* signal_stack_;
};

// Makes SIGSEGV, SIGBUS, SIGFPE and SIGILL inside a kernel land in its worker; others go to whoever had them before.
void catch_faults();

}  // namespace emulator

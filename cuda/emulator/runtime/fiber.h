// Stackful fibers: a saved stack pointer and a switch of ~2 ns. They own no stack; `worker.h` does.
#pragma once
#include <cstddef>

#if !defined(EMULATOR_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define EMULATOR_UCONTEXT 1
#endif
#ifdef EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

namespace emulator {

struct Fiber {
#ifdef EMULATOR_UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer;
#endif
};

// Makes `fiber` call `entry()`, which never returns, on `stack` when first switched to.
void prepare(Fiber& fiber, unsigned char* stack, std::size_t bytes, void (*entry)());
// Saves the running fiber in `from` and goes on with `to`.
void switch_fiber(Fiber& from, Fiber& to);

}  // namespace emulator

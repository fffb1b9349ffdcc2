// Stackful fibers: a saved stack pointer and a switch of ~2 ns. They own no stack; `worker.h` does.
#pragma once
#include <cstddef>

namespace emulator {

struct Fiber {
    void* stack_pointer;
};

// Makes `fiber` call `entry()`, which never returns, on `stack` when first switched to.
void prepare(Fiber& fiber, unsigned char* stack, std::size_t bytes, void (*entry)());
// Saves the running fiber in `from` and goes on with `to`.
void switch_fiber(Fiber& from, Fiber& to);

}  // namespace emulator

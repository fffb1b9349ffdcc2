// `__shared__` variables are thread-local ones: this finds the running OS thread's copy of a module's.
#pragma once
#include <cstddef>

namespace emulator {

struct SharedSegment {
    unsigned char* begin;
    std::size_t bytes;
};

// `anchor` returns the address of one thread-local variable of the module, which also makes the copy exist.
SharedSegment shared_segment(void* (*anchor)());

}  // namespace emulator

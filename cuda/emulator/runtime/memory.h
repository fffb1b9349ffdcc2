// Device arrays: mappings that end at an inaccessible page, and the table that tells which array an address is in.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "order.h"

namespace emulator {

class Ledger;
class Shadow;

// Who was given an array, whether or not they have come to it yet.
struct Uses {
    StreamClock readers;
    StreamClock writers;
};

struct Allocation {
    std::uintptr_t begin;
    std::size_t bytes;
    bool initialised;  // by the host, or by what check mode did not watch
    std::shared_ptr<Ledger> ledger;  // if processes share it
    Uses uses;  // order.cpp's
    std::shared_ptr<Shadow> shadow;  // check mode's memory of who touched it; made at the first access
};

// Null if the system gives no memory. Starts are aligned to 16 bytes, contents are NaN patterns.
void* allocate(std::size_t bytes, bool initialised);
// Memory shared with other processes under `name` (POSIX); zeros when created. Null with errno set on failure.
void* allocate_shared(const char* name, std::size_t bytes, bool create);
void unlink_shared(const char* name);
void release(void* pointer);
// The host has written the array that holds `address`, in order with the kernels.
void mark_initialised(std::uintptr_t address);
// After a kernel that was given `address`: false if it, or anybody, wrote between the end of the array there and its
// inaccessible page (less than 16 bytes). What an unwatched kernel was given counts as written by it.
bool is_left_whole(std::uintptr_t address, bool was_watched);

// The array that holds `address`, or null. Valid until the array is freed.
Allocation* allocation_of(std::uintptr_t address);
// Changes whenever an array is freed.
std::uint64_t memory_version();
Shadow* shadow_of(Allocation& allocation);
// Whether `address` is within the zone around some array where only a wrong index leads.
bool near_allocation(std::uintptr_t address);

}  // namespace emulator

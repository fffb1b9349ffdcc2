// Device arrays: mappings that end at an inaccessible page, and the table that tells which array an address is in.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace emulator {

struct Shadow;

struct Allocation {
    std::uintptr_t begin;
    std::size_t bytes;
    bool initialised;                // as a whole, when it was made (from a host array)
    std::shared_ptr<Shadow> shadow;  // check mode's memory of who touched it; made at the first access
};

// Null if the system gives no memory. Starts are aligned to 16 bytes, contents are NaN patterns.
void* allocate(std::size_t bytes, bool initialised);
// Memory shared with other processes under `name` (POSIX); zeros when created. Null with errno set on failure.
void* allocate_shared(const char* name, std::size_t bytes, bool create);
// Memory that somebody else owns, such as a host tensor's: known to check mode until released.
void adopt(void* pointer, std::size_t bytes);
// False if a kernel wrote between the array's end and its inaccessible page (less than 16 bytes).
bool slack_is_whole(void* pointer);
void release(void* pointer);
// The whole array counts as written by the host.
void mark_initialised(void* pointer);

// The array that holds `address`, or null. Valid until the array is freed.
Allocation* allocation_of(std::uintptr_t address);
Shadow* shadow_of(Allocation& allocation);
// Whether `address` is within the zone around some array where only a wrong index leads.
bool near_allocation(std::uintptr_t address);

}  // namespace emulator

#include "memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "shadow.h"

namespace emulator {
namespace {

constexpr std::size_t page_bytes = 64 << 10;   // a multiple of every page size in use
constexpr std::size_t zone_bytes = 16 << 20;   // inaccessible on both sides; costs addresses, not memory
constexpr unsigned char slack_pattern = 0xA5;

struct Mapping {
    Allocation allocation;
    unsigned char* base;
    std::size_t mapped_bytes;
};

std::shared_mutex guard;
std::map<std::uintptr_t, Mapping>& mappings() {
    static std::map<std::uintptr_t, Mapping> all;
    return all;
}

std::size_t slack_of(std::size_t bytes) { return (16 - bytes % 16) % 16; }

Mapping* mapping_at_or_before(std::uintptr_t address) {
    auto after = mappings().upper_bound(address);
    return after == mappings().begin() ? nullptr : &std::prev(after)->second;
}

}  // namespace

void* allocate(std::size_t bytes, bool initialised) {
    std::size_t body = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    std::size_t mapped = body + 2 * zone_bytes;
    void* base = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    auto* begin = static_cast<unsigned char*>(base) + zone_bytes;
    mprotect(begin, body, PROT_READ | PROT_WRITE);
    std::size_t slack = slack_of(bytes);
    unsigned char* array = begin + body - slack - bytes;
    if (bytes <= (std::size_t{64} << 20)) std::memset(array, 0xFF, bytes);  // huge arrays stay sparse: zeros
    std::memset(array + bytes, slack_pattern, slack);
    std::unique_lock lock(guard);
    auto key = reinterpret_cast<std::uintptr_t>(array);
    mappings()[key] = {{key, bytes, initialised, nullptr}, static_cast<unsigned char*>(base), mapped};
    return array;
}

bool slack_is_whole(void* pointer) {
    std::shared_lock lock(guard);
    const Mapping& mapping = mappings().at(reinterpret_cast<std::uintptr_t>(pointer));
    const auto* end = static_cast<unsigned char*>(pointer) + mapping.allocation.bytes;
    for (std::size_t i = 0; i < slack_of(mapping.allocation.bytes); ++i)
        if (end[i] != slack_pattern) return false;
    return true;
}

void release(void* pointer) {
    std::unique_lock lock(guard);
    auto found = mappings().find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == mappings().end()) return;
    munmap(found->second.base, found->second.mapped_bytes);
    mappings().erase(found);
}

void mark_initialised(void* pointer) {
    std::unique_lock lock(guard);
    Allocation& allocation = mappings().at(reinterpret_cast<std::uintptr_t>(pointer)).allocation;
    allocation.initialised = true;
    allocation.shadow.reset();
}

Allocation* allocation_of(std::uintptr_t address) {
    std::shared_lock lock(guard);
    Mapping* mapping = mapping_at_or_before(address);
    if (mapping == nullptr || address - mapping->allocation.begin >= mapping->allocation.bytes) return nullptr;
    return &mapping->allocation;
}

Shadow* shadow_of(Allocation& allocation) {
    std::unique_lock lock(guard);
    if (!allocation.shadow) allocation.shadow = std::make_shared<Shadow>(allocation.bytes);
    return allocation.shadow.get();
}

bool near_allocation(std::uintptr_t address) {
    std::shared_lock lock(guard);
    auto after = mappings().upper_bound(address);
    const auto holds = [&](const Mapping& mapping) {
        return address - reinterpret_cast<std::uintptr_t>(mapping.base) < mapping.mapped_bytes;
    };
    return (after != mappings().end() && holds(after->second)) ||
           (after != mappings().begin() && holds(std::prev(after)->second));
}

}  // namespace emulator

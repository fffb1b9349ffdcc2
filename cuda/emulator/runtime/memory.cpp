#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "ledger.h"
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
    std::size_t slack_bytes;  // between the array and its inaccessible zone, filled with a pattern
};

std::shared_mutex mappings_guard;
std::atomic<std::uint64_t> version{0};
std::map<std::uintptr_t, Mapping>& mappings() {
    static std::map<std::uintptr_t, Mapping> all;
    return all;
}

struct Zone {
    unsigned char* base = nullptr;  // inaccessible, as all that follows until somebody opens it
    unsigned char* begin = nullptr;
    std::size_t body_bytes = 0;
    std::size_t mapped_bytes = 0;
};

Zone map_zone(std::size_t bytes) {
    std::size_t body = (bytes + page_bytes - 1) / page_bytes * page_bytes, mapped = body + 2 * zone_bytes;
    void* base = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return {};
    return {static_cast<unsigned char*>(base), static_cast<unsigned char*>(base) + zone_bytes, body, mapped};
}

void add(Mapping mapping) {
    std::unique_lock lock(mappings_guard);
    mappings()[mapping.allocation.begin] = std::move(mapping);
}

Mapping* mapping_at_or_before(std::uintptr_t address) {
    auto after = mappings().upper_bound(address);
    return after == mappings().begin() ? nullptr : &std::prev(after)->second;
}

}  // namespace

void* allocate(std::size_t bytes, bool initialised) {
    Zone zone = map_zone(bytes);
    if (zone.base == nullptr) return nullptr;
    mprotect(zone.begin, zone.body_bytes, PROT_READ | PROT_WRITE);
    std::size_t slack = (16 - bytes % 16) % 16;
    unsigned char* array = zone.begin + zone.body_bytes - slack - bytes;
    if (bytes <= (std::size_t{64} << 20)) std::memset(array, 0xFF, bytes);  // huge arrays stay sparse: zeros
    std::memset(array + bytes, slack_pattern, slack);
    auto key = reinterpret_cast<std::uintptr_t>(array);
    add({{key, bytes, initialised, nullptr, {}, nullptr}, zone.base, zone.mapped_bytes, slack});
    return array;
}

// The other process must find the same offsets, so the array begins at a page and the rest of its last page is open.
void* allocate_shared(const char* name, std::size_t bytes, bool create) {
    int file = shm_open(name, create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    if (file < 0) return nullptr;
    if (create) Ledger::unlink(name);  // one that a killed process left
    Zone zone = map_zone(bytes);
    bool is_sized = !create || ftruncate(file, static_cast<off_t>(zone.body_bytes)) == 0;
    void* body = MAP_FAILED;
    if (zone.base != nullptr && is_sized)
        body = mmap(zone.begin, zone.body_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    close(file);
    std::shared_ptr<Ledger> ledger = body == MAP_FAILED ? nullptr : Ledger::open(name, zone.body_bytes);
    if (ledger == nullptr) {
        if (zone.base != nullptr) munmap(zone.base, zone.mapped_bytes);
        if (create) unlink_shared(name);
        return nullptr;
    }
    auto key = reinterpret_cast<std::uintptr_t>(zone.begin);
    add({{key, bytes, true, ledger, {}, nullptr}, zone.base, zone.mapped_bytes, 0});
    return zone.begin;
}

void unlink_shared(const char* name) {
    shm_unlink(name);
    Ledger::unlink(name);
}

void release(void* pointer) {
    std::unique_lock lock(mappings_guard);
    auto found = mappings().find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == mappings().end()) return;
    munmap(found->second.base, found->second.mapped_bytes);
    mappings().erase(found);
    ++version;
}

std::uint64_t memory_version() { return version.load(std::memory_order_acquire); }

void mark_initialised(std::uintptr_t address) {
    Allocation* array = allocation_of(address);
    if (array == nullptr || array->ledger) return;  // who shares memory tells of it by flags, not by the host
    std::shared_ptr<Shadow> shadow;
    {
        std::shared_lock lock(mappings_guard);
        shadow = array->shadow;
    }
    if (shadow) shadow->forget();  // with its own lock alone
    std::unique_lock lock(mappings_guard);
    array->initialised = true;
}

bool is_left_whole(std::uintptr_t address, bool was_watched) {
    std::shared_lock lock(mappings_guard);
    Mapping* mapping = mapping_at_or_before(address);
    if (mapping == nullptr) return true;
    Allocation& array = mapping->allocation;
    if (address - array.begin >= array.bytes) return true;
    if (!was_watched) array.initialised = true;
    const auto* end = reinterpret_cast<unsigned char*>(array.begin + array.bytes);
    for (std::size_t i = 0; i < mapping->slack_bytes; ++i)
        if (end[i] != slack_pattern) return false;
    return true;
}

Allocation* allocation_of(std::uintptr_t address) {
    std::shared_lock lock(mappings_guard);
    Mapping* mapping = mapping_at_or_before(address);
    if (mapping == nullptr || address - mapping->allocation.begin >= mapping->allocation.bytes) return nullptr;
    return &mapping->allocation;
}

Shadow* shadow_of(Allocation& allocation) {
    std::unique_lock lock(mappings_guard);
    if (!allocation.shadow)
        allocation.shadow = allocation.ledger ? std::make_shared<Shadow>(allocation.ledger)
                                              : std::make_shared<Shadow>(allocation.bytes);
    return allocation.shadow.get();
}

bool near_allocation(std::uintptr_t address) {
    std::shared_lock lock(mappings_guard);
    auto after = mappings().upper_bound(address);
    const auto holds = [&](const Mapping& mapping) {
        return address - reinterpret_cast<std::uintptr_t>(mapping.base) < mapping.mapped_bytes;
    };
    return (after != mappings().end() && holds(after->second)) ||
           (after != mappings().begin() && holds(std::prev(after)->second));
}

}  // namespace emulator

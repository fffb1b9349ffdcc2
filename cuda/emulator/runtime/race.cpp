// The checks of each access, against what the shadow remembers of earlier ones.
#include "race.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>

#include "block.h"
#include "ledger.h"
#include "memory.h"

namespace emulator {
namespace {

std::string index_text(Index3 index) {
    return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

}  // namespace

BlockHistory::Place BlockHistory::place_of(std::uintptr_t address, unsigned bytes) {
    if (worker_.on_stacks(address)) return {};
    std::size_t in_static = address - reinterpret_cast<std::uintptr_t>(worker_.static_shared);
    if (in_static < worker_.static_shared_bytes) return {&static_shadow_, in_static, nullptr, "shared memory", nullptr};
    std::size_t in_dynamic = address - reinterpret_cast<std::uintptr_t>(dynamic_shared_);
    if (in_dynamic < launch_.request().shared_bytes) {
        bool is_within = in_dynamic + bytes <= launch_.request().shared_bytes;
        const char* wrong = is_within ? nullptr : "behind dynamic shared memory";
        return {&dynamic_shadow_, in_dynamic, nullptr, "dynamic shared memory", wrong};
    }
    if (worker_.in_shared_mapping(address)) return {nullptr, 0, nullptr, nullptr, "outside of dynamic shared memory"};
    if (Allocation* array = array_at(address)) {
        std::size_t offset = address - array->begin;
        const char* wrong = offset + bytes > array->bytes ? "across the end of a device array" : nullptr;
        return {last_shadow_, offset, array, "a device array", wrong};
    }
    return {nullptr, 0, nullptr, nullptr, near_allocation(address) ? "outside of the device array near it" : nullptr};
}

Allocation* BlockHistory::array_at(std::uintptr_t address) {
    bool is_last = last_array_ != nullptr && last_version_ == memory_version() &&
                   address - last_array_->begin < last_array_->bytes;
    if (!is_last) {
        last_version_ = memory_version();
        last_array_ = allocation_of(address);
        last_shadow_ = last_array_ != nullptr ? shadow_of(*last_array_) : nullptr;
    }
    return last_array_;
}

Conflict BlockHistory::access(const Access& access) {
    Place place = place_of(access.address, access.bytes);
    if (place.wrong != nullptr) {
        char text[128];
        snprintf(text, sizeof text, "%s of %u bytes at %#lx, %s", access.write ? "write" : "read", access.bytes,
                 static_cast<unsigned long>(access.address), place.wrong);
        return {"out-of-bounds", text, 0};
    }
    if (place.shadow == nullptr) return {};
    std::unique_lock<Shadow> lock(*place.shadow, std::defer_lock);
    if (place.array != nullptr) lock.lock();  // a block's shared memory is its OS thread's alone
    std::size_t end = place.offset + access.bytes;
    for (std::size_t at = place.offset & ~std::size_t{1}; at < end; at += 2) {
        unsigned bytes = (at >= place.offset ? 1u : 0u) | (at + 1 < end ? 2u : 0u);
        Conflict conflict = check_cell(access, place, place.shadow->cell(at), bytes);
        if (conflict.kind != nullptr) return conflict;
    }
    return {};
}

Conflict BlockHistory::check_cell(const Access& access, const Place& place, Cell& cell, unsigned bytes) {
    if (cell.write.pending && (cell.write.bytes & bytes)) return against("pending-copy", access, place, cell.write);
    bool both_atomic = access.atomic && cell.write.atomic;
    if (cell.write.thread != 0 && (cell.write.bytes & bytes) && !both_atomic && !is_ordered(access.rank, cell.write, place))
        return against("race", access, place, cell.write);
    if (access.write)
        for (const Stamp& read : cell.reads)
            if (read.thread != 0 && (read.bytes & bytes) && !(access.atomic && read.atomic) &&
                !is_ordered(access.rank, read, place))
                return against("race", access, place, read);
    bool is_initialised = place.array != nullptr && place.array->initialised;
    if (access.read && (cell.written & bytes) != bytes && !is_initialised) {
        std::string where = std::string(place.name) + " + " + std::to_string(place.offset);
        std::string text = "read of " + std::to_string(access.bytes) + " bytes that nobody wrote, at " + where;
        return {"uninitialised", text, 0};
    }
    Stamp now = stamp(access, place, bytes);
    if (access.write) {
        cell.write = now;  // of two bytes written by two threads the later is remembered: no false alarm, fewer true ones
        cell.written |= static_cast<std::uint8_t>(bytes);
        cell.reads[0] = cell.reads[1] = Stamp();  // all were ordered before this write, as whoever follows it will be
    } else {
        note_read(cell, now, access, place);
    }
    return {};
}

Stamp BlockHistory::stamp(const Access& access, const Place& place, unsigned bytes) const {
    Stamp now;
    now.thread = run_.base + access.rank;
    now.time = now_[access.rank];
    now.code = access.code;
    now.slot = place.shadow->ledger() != nullptr ? place.shadow->ledger()->slot() : 0;
    now.bytes = bytes;
    now.atomic = access.atomic;
    return now;
}

// Keeps two readers that do not know of each other, of different warps where it can.
void BlockHistory::note_read(Cell& cell, const Stamp& now, const Access& access, const Place& place) {
    for (Stamp& read : cell.reads) {
        bool is_mine = read.thread == 0 || (read.thread == now.thread && read.slot == now.slot);
        if (is_mine || ((read.bytes & ~now.bytes) == 0 && is_ordered(access.rank, read, place))) {
            read = now;
            return;
        }
    }
    const Stamp& first = cell.reads[0];
    bool same_warp = first.slot == now.slot && (first.thread - run_.base) / 32 == access.rank / 32;
    cell.reads[same_warp ? 0 : 1] = now;
}

Conflict BlockHistory::against(const char* kind, const Access& access, const Place& place, const Stamp& other) const {
    const Ledger* ledger = place.shadow->ledger();
    bool is_elsewhere = ledger != nullptr && other.slot != ledger->slot();
    BlockRun run = is_elsewhere ? *ledger->run_of(other.slot, other.thread) : block_run_of(other.thread);
    unsigned rank = other.thread - run.base;
    unsigned x = run.block_dim.x, y = run.block_dim.y;
    Index3 thread{rank % x, rank / x % y, rank / x / y};
    std::string text = std::string(access.write ? "write" : "read") + " of " + std::to_string(access.bytes) +
                       " bytes at " + place.name + " + " + std::to_string(place.offset);
    text += other.pending ? ", where a cp.async is not waited for, issued by thread " : ", unordered with one by thread ";
    text += index_text(thread) + " of block " + index_text(run.block);
    if (is_elsewhere) {
        std::uint32_t process = ledger->process_of(other.slot);
        text += " of process " + std::to_string(process);
        return {kind, text, is_site(other.code) ? 0 : other.code, process};  // it numbers sites for itself
    }
    if (run.stream != run_.stream || run.sequence != run_.sequence) text += " of another launch";
    return {kind, text, other.code};
}

Conflict BlockHistory::begin_copy(unsigned rank, const AsyncCopy& copy) {
    auto address = reinterpret_cast<std::uintptr_t>(copy.shared);
    std::uint64_t code = code_of(copy.site);
    if (copy.source_count > 0) {
        auto source = reinterpret_cast<std::uintptr_t>(copy.global);
        Conflict bad = access({rank, source, copy.source_count, true, false, false, code});
        if (bad.kind != nullptr) return bad;
    }
    Conflict bad = access({rank, address, copy.count, false, true, false, code});
    Place place = place_of(address, copy.count);
    if (bad.kind != nullptr || place.shadow == nullptr) return bad;
    for (std::size_t at = place.offset; at < place.offset + copy.count; at += 2)
        place.shadow->cell(at).write.pending = 1;
    return {};
}

void BlockHistory::finish_copy(unsigned rank, const AsyncCopy& copy) {
    Place place = place_of(reinterpret_cast<std::uintptr_t>(copy.shared), copy.count);
    if (place.shadow == nullptr) return;
    for (std::size_t at = place.offset; at < place.offset + copy.count; at += 2) {
        Stamp& write = place.shadow->cell(at).write;
        write.pending = 0;
        write.time = now_[rank];
    }
}

}  // namespace emulator

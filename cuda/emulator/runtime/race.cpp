#include "race.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_map>

#include "block.h"
#include "memory.h"
#include "order.h"

namespace emulator {
namespace {

// What was released at each address that was ever used as a flag. Shared by all devices of the process.
std::mutex flags_guard;
std::unordered_map<std::uintptr_t, std::vector<Knowledge>> flags;
constexpr std::size_t max_releases = 32;  // a reader is never further behind

void join(Clocks& into, const Clocks& from) {
    for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void join(Foreign& into, const Foreign& from) {
    for (const auto& [base, clocks] : from) {
        auto& mine = into[base];
        if (!mine || mine == clocks) {
            mine = clocks;
            continue;
        }
        auto joined = std::make_shared<Clocks>(*mine);
        join(*joined, *clocks);
        mine = joined;
    }
}

// A read-modify-write goes on with what others released at the flag before it.
void publish(std::vector<Knowledge>& released, const Knowledge& knowledge) {
    for (Knowledge& earlier : released)
        if (!earlier.has_value && earlier.device == knowledge.device &&
            earlier.system_scope == knowledge.system_scope) {
            join(earlier.clocks, knowledge.clocks);
            return;
        }
    released.push_back(knowledge);
}

std::string index_text(Index3 index) {
    return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

}  // namespace

void forget_releases() {
    std::lock_guard<std::mutex> lock(flags_guard);
    flags.clear();
}

BlockHistory::BlockHistory(Launch& launch, Worker& worker, Index3 index, unsigned char* dynamic_shared)
    : launch_(launch),
      worker_(worker),
      run_(add_block_run(launch, index)),
      oldest_actor_(oldest_actor()),
      dynamic_shared_(dynamic_shared),
      static_shadow_(worker.static_shared_bytes),
      dynamic_shadow_(launch.request().shared_bytes),
      now_(run_.num_threads, 1),
      base_(run_.num_threads, 0),
      known_(run_.num_threads),
      foreign_(run_.num_threads),
      fenced_(run_.num_threads),
      seen_(run_.num_threads) {}

Clocks& BlockHistory::known(unsigned rank) {
    if (known_[rank].empty()) known_[rank].resize(run_.num_threads, 0);
    return known_[rank];
}

void BlockHistory::synchronize(const std::vector<unsigned>& ranks) {
    barrier(ranks, ranks, ranks.size() == run_.num_threads);
}

void BlockHistory::barrier(const std::vector<unsigned>& members, const std::vector<unsigned>& waiting,
                           bool whole_block) {
    if (whole_block && waiting.size() == members.size()) {
        for (unsigned rank = 0; rank < run_.num_threads; ++rank) base_[rank] = now_[rank]++;
    } else {
        Clocks joined(run_.num_threads, 0);
        for (unsigned rank : members) {
            if (!known_[rank].empty()) join(joined, known_[rank]);
            joined[rank] = std::max(joined[rank], now_[rank]);
        }
        for (unsigned rank : waiting) join(known(rank), joined);
        for (unsigned rank : members) ++now_[rank];
    }
    if (!any_foreign_) return;
    Foreign joined;
    for (unsigned rank : members) join(joined, foreign_[rank]);
    for (unsigned rank : waiting) foreign_[rank] = joined;
}

BlockHistory::Place BlockHistory::place_of(std::uintptr_t address, unsigned bytes) {
    if (worker_.on_stacks(address)) return {};
    std::size_t in_static = address - reinterpret_cast<std::uintptr_t>(worker_.static_shared);
    if (in_static < worker_.static_shared_bytes) return {&static_shadow_, in_static, false, "shared memory", nullptr};
    std::size_t in_dynamic = address - reinterpret_cast<std::uintptr_t>(dynamic_shared_);
    if (in_dynamic < launch_.request().shared_bytes) {
        bool is_within = in_dynamic + bytes <= launch_.request().shared_bytes;
        const char* wrong = is_within ? nullptr : "behind dynamic shared memory";
        return {&dynamic_shadow_, in_dynamic, false, "dynamic shared memory", wrong};
    }
    if (worker_.in_shared_mapping(address)) return {nullptr, 0, false, nullptr, "outside of dynamic shared memory"};
    if (Allocation* array = allocation_of(address)) {
        std::size_t offset = address - array->begin;
        const char* wrong = offset + bytes > array->bytes ? "across the end of a device array" : nullptr;
        return {shadow_of(*array), offset, array->initialised, "a device array", wrong};
    }
    return {nullptr, 0, false, nullptr, near_allocation(address) ? "outside of the device array near it" : nullptr};
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
    std::lock_guard<std::mutex> lock(place.shadow->guard);
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
    if (cell.write.actor != 0 && (cell.write.bytes & bytes) && !both_atomic && !is_ordered(access.rank, cell.write))
        return against("race", access, place, cell.write);
    if (access.write)
        for (const Stamp& read : cell.reads)
            if (read.actor != 0 && (read.bytes & bytes) && !(access.atomic && read.atomic) &&
                !is_ordered(access.rank, read))
                return against("race", access, place, read);
    if (access.read && !place.initialised && (cell.written & bytes) != bytes) {
        std::string where = std::string(place.name) + " + " + std::to_string(place.offset);
        std::string text = "read of " + std::to_string(access.bytes) + " bytes that nobody wrote, at " + where;
        return {"uninitialised", text, 0};
    }
    Stamp now = stamp(access, bytes);
    if (access.write) {
        cell.write = now;  // of two bytes written by two threads the later is remembered: no false alarm, fewer true ones
        cell.written |= static_cast<std::uint8_t>(bytes);
        cell.reads[0] = cell.reads[1] = Stamp();  // all were ordered before this write, as whoever follows it will be
    } else {
        note_read(cell, now);
    }
    return {};
}

Stamp BlockHistory::stamp(const Access& access, unsigned bytes) const {
    Stamp now;
    now.actor = run_.base + access.rank;
    now.time = now_[access.rank];
    now.code = access.code;
    now.bytes = bytes;
    now.atomic = access.atomic;
    return now;
}

// Keeps two readers that do not know of each other, of different warps where it can.
void BlockHistory::note_read(Cell& cell, const Stamp& now) {
    unsigned rank = now.actor - run_.base;
    for (Stamp& read : cell.reads)
        if (read.actor == 0 || read.actor == now.actor || ((read.bytes & ~now.bytes) == 0 && is_ordered(rank, read))) {
            read = now;
            return;
        }
    bool same_warp = (cell.reads[0].actor - run_.base) / 32 == rank / 32;
    cell.reads[same_warp ? 0 : 1] = now;
}

bool BlockHistory::is_ordered(unsigned rank, const Stamp& stamp) const {
    std::uint32_t other = stamp.actor - run_.base;
    if (other < run_.num_threads) {
        if (other == rank || stamp.time <= base_[other]) return true;
        return !known_[rank].empty() && stamp.time <= known_[rank][other];
    }
    if (stamp.actor < oldest_actor_) return true;
    BlockRun run = block_run_of(stamp.actor);
    if (run.launch != run_.launch && is_launch_ordered(run.launch, run_.launch)) return true;
    auto found = foreign_[rank].find(run.base);
    return found != foreign_[rank].end() && stamp.time <= (*found->second)[stamp.actor - run.base];
}

Conflict BlockHistory::against(const char* kind, const Access& access, const Place& place, const Stamp& other) const {
    BlockRun run = block_run_of(other.actor);
    unsigned rank = other.actor - run.base;
    unsigned x = run.block_dim.x, y = run.block_dim.y;
    Index3 thread{rank % x, rank / x % y, rank / x / y};
    std::string text = std::string(access.write ? "write" : "read") + " of " + std::to_string(access.bytes) +
                       " bytes at " + place.name + " + " + std::to_string(place.offset);
    text += other.pending ? ", where a cp.async is not waited for, issued by thread " : ", unordered with one by thread ";
    text += index_text(thread) + " of block " + index_text(run.block);
    if (run.launch != run_.launch) text += " of another launch";
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

Knowledge BlockHistory::snapshot(unsigned rank, bool system_scope) {
    auto mine = std::make_shared<Clocks>(base_);
    if (!known_[rank].empty()) join(*mine, known_[rank]);
    (*mine)[rank] = now_[rank];
    Knowledge knowledge{foreign_[rank], run_.device, system_scope};
    knowledge.clocks[run_.base] = mine;
    ++now_[rank];
    return knowledge;
}

// Between devices only system scope orders, on both sides.
void BlockHistory::learn(unsigned rank, const Knowledge& knowledge, bool system_scope) {
    if (knowledge.device != run_.device && !(knowledge.system_scope && system_scope)) return;
    Foreign others = knowledge.clocks;
    if (auto own = others.find(run_.base); own != others.end()) {
        join(known(rank), *own->second);
        others.erase(own);
    }
    if (others.empty()) return;
    any_foreign_ = true;
    join(foreign_[rank], others);
}

void BlockHistory::release(unsigned rank, std::uintptr_t address, bool system_scope, unsigned value) {
    Knowledge knowledge = snapshot(rank, system_scope);
    knowledge.has_value = true;
    knowledge.value = value;
    std::lock_guard<std::mutex> lock(flags_guard);
    auto& released = flags[address];
    if (released.size() >= max_releases) released.erase(released.begin());
    released.push_back(std::move(knowledge));
}

void BlockHistory::acquire(unsigned rank, std::uintptr_t address, bool system_scope, unsigned value) {
    std::vector<Knowledge> released;
    {
        std::lock_guard<std::mutex> lock(flags_guard);
        if (auto found = flags.find(address); found != flags.end()) released = found->second;
    }
    for (const Knowledge& knowledge : released)
        if (!knowledge.has_value || knowledge.value == value) learn(rank, knowledge, system_scope);
}

void BlockHistory::relaxed(unsigned rank, std::uintptr_t address, bool system_scope) {
    std::lock_guard<std::mutex> lock(flags_guard);
    if (!fenced_[rank]) return;
    Knowledge knowledge = *fenced_[rank];
    knowledge.system_scope = knowledge.system_scope && system_scope;
    publish(flags[address], knowledge);
}

void BlockHistory::see(unsigned rank, std::uintptr_t address) {
    std::lock_guard<std::mutex> lock(flags_guard);
    if (auto found = flags.find(address); found != flags.end())
        seen_[rank].insert(seen_[rank].end(), found->second.begin(), found->second.end());
}

void BlockHistory::fence(unsigned rank, bool system_scope) {
    for (const Knowledge& knowledge : seen_[rank]) learn(rank, knowledge, system_scope);
    seen_[rank].clear();
    fenced_[rank] = std::make_unique<Knowledge>(snapshot(rank, system_scope));
}

}  // namespace emulator

#include "knowledge.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "actors.h"
#include "ledger.h"
#include "memory.h"

namespace emulator {
namespace {

struct Flag {
    std::vector<Knowledge> released;
    std::uint64_t version = 0;
};

std::mutex flags_guard;
std::unordered_map<std::uintptr_t, Flag> flags;
std::uint64_t last_version = 0;  // of all flags, so that one forgotten and made again has a new one

void add(Flag& flag, const Knowledge& knowledge) {
    if (flag.released.size() >= max_releases) flag.released.erase(flag.released.begin());
    flag.released.push_back(knowledge);
    flag.version = ++last_version;
}

bool continues(const Knowledge& earlier, const Knowledge& knowledge) {
    return !earlier.has_value && earlier.device == knowledge.device && earlier.system_scope == knowledge.system_scope;
}

// The ledger and the offset of a flag that processes share.
std::pair<Ledger*, std::size_t> shared_place(std::uintptr_t flag) {
    Allocation* array = allocation_of(flag);
    if (array == nullptr || array->ledger == nullptr) return {nullptr, 0};
    return {array->ledger.get(), flag - array->begin};
}

}  // namespace

GlobalName global_name(std::uint32_t process, std::uint32_t number) {
    return static_cast<GlobalName>(process) << 32 | number;
}

GlobalName global_name(std::uint32_t number) {
    static const auto process = static_cast<std::uint32_t>(getpid());
    return global_name(process, number);
}

void join(Foreign& into, const Foreign& from) {
    for (const auto& [base, clocks] : from.blocks) {
        auto& mine = into.blocks[base];
        if (!mine || mine == clocks) {
            mine = clocks;
            continue;
        }
        auto joined = std::make_shared<Clocks>(*mine);
        join(*joined, *clocks);
        mine = joined;
    }
    for (const auto& [stream, sequence] : from.launches) {
        auto& mine = into.launches[stream];
        mine = std::max(mine, sequence);
    }
}

void release_by_store(std::uintptr_t flag, const Knowledge& knowledge) {
    if (auto [ledger, offset] = shared_place(flag); ledger != nullptr) return ledger->release(offset, knowledge);
    std::lock_guard<std::mutex> lock(flags_guard);
    add(flags[flag], knowledge);
}

void release_by_update(std::uintptr_t flag, const Knowledge& knowledge) {
    if (auto [ledger, offset] = shared_place(flag); ledger != nullptr) {
        Knowledge whole = knowledge;
        std::uint64_t version = 0;
        for (const Knowledge& earlier : ledger->released(offset, version))
            if (continues(earlier, knowledge)) join(whole.known, earlier.known);
        return ledger->release(offset, whole);
    }
    std::lock_guard<std::mutex> lock(flags_guard);
    Flag& there = flags[flag];
    there.version = ++last_version;
    for (Knowledge& earlier : there.released)
        if (continues(earlier, knowledge)) return join(earlier.known, knowledge.known);
    add(there, knowledge);
}

std::vector<Knowledge> released_at(std::uintptr_t flag, std::uint64_t& version) {
    if (auto [ledger, offset] = shared_place(flag); ledger != nullptr) return ledger->released(offset, version);
    std::lock_guard<std::mutex> lock(flags_guard);
    auto found = flags.find(flag);
    if (found == flags.end() || found->second.version == version) return {};
    version = found->second.version;
    return found->second.released;
}

void forget_releases() {
    std::lock_guard<std::mutex> lock(flags_guard);
    GlobalName first = global_name(0), oldest = global_name(oldest_actor());
    for (auto flag = flags.begin(); flag != flags.end();) {
        auto& released = flag->second.released;
        for (Knowledge& knowledge : released) {
            auto& blocks = knowledge.known.blocks;
            blocks.erase(blocks.lower_bound(first), blocks.lower_bound(oldest));
        }
        const auto is_empty = [](const Knowledge& knowledge) { return knowledge.known.blocks.empty(); };
        released.erase(std::remove_if(released.begin(), released.end(), is_empty), released.end());
        flag = released.empty() ? flags.erase(flag) : std::next(flag);
    }
}

}  // namespace emulator

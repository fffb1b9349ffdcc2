#include "knowledge.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "launch.h"
#include "ledger.h"
#include "memory.h"

namespace emulator {
namespace {

std::mutex runs_guard;
std::deque<BlockRun> runs;  // by base
std::uint32_t next_base = 1;
std::atomic<std::uint32_t> oldest{1};

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

std::mutex learned_guard;
// By stream, then by the launch's place in it: all that was learnt up to there.
std::vector<std::map<std::uint32_t, std::shared_ptr<const Foreign>>> learned_in;

void forget_releases() {
    std::lock_guard<std::mutex> lock(flags_guard);
    GlobalName first = global_name(0), oldest = global_name(oldest_thread());
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

void forget_learned(const StreamClock& horizon) {
    std::lock_guard<std::mutex> lock(learned_guard);
    for (std::uint32_t stream = 0; stream < learned_in.size(); ++stream) {
        auto& launches = learned_in[stream];
        auto after = launches.upper_bound(at(horizon, stream));
        if (after != launches.begin()) launches.erase(launches.begin(), std::prev(after));
    }
}

}  // namespace

BlockRun add_block_run(const Launch& launch, Index3 block) {
    std::lock_guard<std::mutex> lock(runs_guard);
    const Ticket& ticket = launch.ticket();
    runs.push_back({next_base, launch.num_threads(), ticket.stream, ticket.sequence, launch.request().device, block,
                    launch.block()});
    next_base += launch.num_threads();
    for (const auto& ledger : Ledger::all()) ledger->add_run(runs.back());
    return runs.back();
}

BlockRun block_run_of(std::uint32_t thread) {
    std::lock_guard<std::mutex> lock(runs_guard);
    auto after = std::upper_bound(runs.begin(), runs.end(), thread,
                                  [](std::uint32_t wanted, const BlockRun& run) { return wanted < run.base; });
    return *std::prev(after);
}

std::uint32_t oldest_thread() { return oldest.load(std::memory_order_relaxed); }

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

std::shared_ptr<const Foreign> learned_before(const Ticket& ticket) {
    std::lock_guard<std::mutex> lock(learned_guard);
    std::shared_ptr<const Foreign> all = std::make_shared<Foreign>();
    for (std::uint32_t stream = 0; stream < learned_in.size(); ++stream) {
        const auto& launches = learned_in[stream];
        auto after = launches.upper_bound(at(ticket.after, stream));
        if (after == launches.begin()) continue;
        const auto& learned = std::prev(after)->second;
        if (all->blocks.empty() && all->launches.empty()) {
            all = learned;
            continue;
        }
        auto joined = std::make_shared<Foreign>(*all);
        join(*joined, *learned);
        all = joined;
    }
    return all;
}

void keep_learned(const Ticket& ticket, Foreign learned) {
    for (auto block = learned.blocks.begin(); block != learned.blocks.end();)
        block = is_forgettable(block->first) ? learned.blocks.erase(block) : std::next(block);
    std::lock_guard<std::mutex> lock(learned_guard);
    if (learned_in.size() <= ticket.stream) learned_in.resize(ticket.stream + 1);
    learned_in[ticket.stream][ticket.sequence] = std::make_shared<Foreign>(std::move(learned));
}

void forget_threads(const StreamClock& horizon, const StreamClock& host) {
    {
        std::lock_guard<std::mutex> lock(runs_guard);
        while (!runs.empty() && runs.front().sequence <= at(horizon, runs.front().stream)) runs.pop_front();
        oldest = runs.empty() ? next_base : runs.front().base;
        for (const auto& ledger : Ledger::all()) ledger->host_waited(host);
    }
    forget_releases();
    forget_learned(horizon);
}

}  // namespace emulator

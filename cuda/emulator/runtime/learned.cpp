#include "learned.h"

#include <map>
#include <mutex>
#include <vector>

#include "ledger.h"

namespace emulator {
namespace {

std::mutex learned_guard;
// By stream, then by the launch's place in it: all that was learnt up to there.
std::vector<std::map<std::uint32_t, std::shared_ptr<const Foreign>>> learned_in;

}  // namespace

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

void forget_learned(const StreamClock& horizon) {
    std::lock_guard<std::mutex> lock(learned_guard);
    for (std::uint32_t stream = 0; stream < learned_in.size(); ++stream) {
        auto& launches = learned_in[stream];
        auto after = launches.upper_bound(at(horizon, stream));
        if (after != launches.begin()) launches.erase(launches.begin(), std::prev(after));
    }
}

}  // namespace emulator

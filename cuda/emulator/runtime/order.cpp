#include "order.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "actors.h"

namespace emulator {
namespace {

using Clock = std::vector<std::uint32_t>;  // by stream; what is missing is zero

struct Ticket {
    std::uint32_t stream;
    std::uint32_t sequence;
    Clock after;
};

std::mutex guard;
Clock host;
Clock submitted;
std::vector<Clock> streams(1);  // what the next launch of each waits for; stream 0 is nobody's
std::unordered_map<std::uint32_t, Ticket> tickets;
std::vector<Clock> events;
std::uint32_t last_ticket = 0;
thread_local std::uint32_t own_stream = 0;

std::uint32_t at(const Clock& clock, std::uint32_t stream) { return stream < clock.size() ? clock[stream] : 0; }

void join(Clock& into, const Clock& from) {
    if (into.size() < from.size()) into.resize(from.size(), 0);
    for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void advance(Clock& clock, std::uint32_t stream, std::uint32_t sequence) {
    if (clock.size() <= stream) clock.resize(stream + 1, 0);
    clock[stream] = std::max(clock[stream], sequence);
}

bool has_host_waited_for_all() {
    for (std::uint32_t stream = 0; stream < submitted.size(); ++stream)
        if (at(host, stream) < submitted[stream]) return false;
    return true;
}

std::uint32_t add_stream() {
    streams.push_back({});
    return static_cast<std::uint32_t>(streams.size() - 1);
}

std::uint32_t add_ticket(std::uint32_t stream) {
    if (has_host_waited_for_all()) {  // nothing runs, and whatever comes is ordered behind whatever was
        tickets.clear();
        forget_actors();
    }
    join(streams[stream], host);
    std::uint32_t sequence = at(submitted, stream) + 1;
    tickets[++last_ticket] = {stream, sequence, streams[stream]};
    advance(submitted, stream, sequence);
    advance(streams[stream], stream, sequence);
    return last_ticket;
}

}  // namespace

std::uint32_t create_stream() {
    std::lock_guard<std::mutex> lock(guard);
    return add_stream();
}

std::uint32_t submit(std::uint32_t stream) {
    std::lock_guard<std::mutex> lock(guard);
    return add_ticket(stream);
}

std::uint32_t submit_synchronous() {
    std::lock_guard<std::mutex> lock(guard);
    if (own_stream == 0) own_stream = add_stream();
    return add_ticket(own_stream);
}

std::uint32_t record_event(std::uint32_t stream) {
    std::lock_guard<std::mutex> lock(guard);
    events.push_back(streams[stream]);
    return static_cast<std::uint32_t>(events.size() - 1);
}

void stream_waits_for_event(std::uint32_t stream, std::uint32_t event) {
    std::lock_guard<std::mutex> lock(guard);
    join(streams[stream], events[event]);
}

void host_waits_for_event(std::uint32_t event) {
    std::lock_guard<std::mutex> lock(guard);
    join(host, events[event]);
}

void host_waits_for_stream(std::uint32_t stream) {
    std::lock_guard<std::mutex> lock(guard);
    join(host, streams[stream]);
}

void host_waits_for_launch(std::uint32_t ticket) {
    std::lock_guard<std::mutex> lock(guard);
    const Ticket& launch = tickets.at(ticket);
    join(host, launch.after);
    advance(host, launch.stream, launch.sequence);
}

bool is_launch_ordered(std::uint32_t earlier, std::uint32_t later) {
    std::lock_guard<std::mutex> lock(guard);
    const Ticket& first = tickets.at(earlier);
    return at(tickets.at(later).after, first.stream) >= first.sequence;
}

}  // namespace emulator

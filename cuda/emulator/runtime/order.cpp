#include "order.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "knowledge.h"
#include "memory.h"

namespace emulator {
namespace {

std::mutex order_guard;
StreamClock host;
StreamClock submitted;
std::uint32_t num_streams = 1;  // stream 0 is nobody's
std::vector<std::uint32_t> closed;
std::unordered_map<std::uint32_t, Ticket> tickets;  // those that the host has not waited for
std::uint32_t last_ticket = 0;

void advance(StreamClock& clock, std::uint32_t stream, std::uint32_t sequence) {
    if (clock.size() <= stream) clock.resize(stream + 1, 0);
    clock[stream] = std::max(clock[stream], sequence);
}

bool is_within(const StreamClock& some, const StreamClock& all) {
    for (std::uint32_t stream = 0; stream < some.size(); ++stream)
        if (some[stream] > at(all, stream)) return false;
    return true;
}

std::uint32_t add_stream() {
    if (closed.empty()) return num_streams++;
    std::uint32_t stream = closed.back();
    closed.pop_back();
    return stream;
}

std::uint32_t add_ticket(std::uint32_t stream) {
    std::uint32_t sequence = at(submitted, stream) + 1;
    Ticket& ticket = tickets[++last_ticket];
    ticket = {stream, sequence, host};
    advance(ticket.after, stream, sequence - 1);
    advance(submitted, stream, sequence);
    return last_ticket;
}

// Forgets what nothing can be unordered with any more: the host knows of it, and so does all that may still run.
void settle() {
    StreamClock horizon = host;
    for (auto each = tickets.begin(); each != tickets.end();) {
        const Ticket& ticket = each->second;
        if (ticket.sequence <= at(host, ticket.stream)) {
            each = tickets.erase(each);
            continue;
        }
        for (std::uint32_t stream = 0; stream < horizon.size(); ++stream)
            horizon[stream] = std::min(horizon[stream], at(ticket.after, stream));
        ++each;
    }
    forget_threads(horizon, host);
}

// The running OS thread's stream for what it waits for at once.
struct OwnStream {
    std::uint32_t number = 0;
    ~OwnStream() {
        if (number != 0) close_stream(number);
    }
};
thread_local OwnStream own;

}  // namespace

void join(StreamClock& into, const StreamClock& from) {
    if (into.size() < from.size()) into.resize(from.size(), 0);
    for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

std::uint32_t create_stream() {
    std::lock_guard<std::mutex> lock(order_guard);
    return add_stream();
}

void close_stream(std::uint32_t stream) {
    std::lock_guard<std::mutex> lock(order_guard);
    closed.push_back(stream);
}

std::uint32_t submit(std::uint32_t stream) {
    std::lock_guard<std::mutex> lock(order_guard);
    return add_ticket(stream);
}

std::uint32_t submit_synchronous() {
    std::lock_guard<std::mutex> lock(order_guard);
    if (own.number == 0) own.number = add_stream();
    return add_ticket(own.number);
}

void note_use(std::uint32_t number, std::uintptr_t address, bool writes) {
    std::lock_guard<std::mutex> lock(order_guard);
    Allocation* array = allocation_of(address);
    auto found = tickets.find(number);
    if (array == nullptr || found == tickets.end()) return;
    advance(writes ? array->uses.writers : array->uses.readers, found->second.stream, found->second.sequence);
}

bool may_host_touch(std::uintptr_t address, bool write) {
    std::lock_guard<std::mutex> lock(order_guard);
    const Allocation* array = allocation_of(address);
    if (array == nullptr || array->ledger) return true;  // hosts of several processes talk in ways not seen here
    const Uses& uses = array->uses;
    return is_within(uses.writers, host) && (!write || is_within(uses.readers, host));
}

Ticket ticket_of(std::uint32_t number) {
    std::lock_guard<std::mutex> lock(order_guard);
    return tickets.at(number);
}

void host_waits(std::uint32_t ticket) {
    std::lock_guard<std::mutex> lock(order_guard);
    auto found = tickets.find(ticket);
    if (found == tickets.end()) return;
    advance(host, found->second.stream, found->second.sequence);
    settle();
}

void host_waits_for_stream(std::uint32_t stream) {
    std::lock_guard<std::mutex> lock(order_guard);
    advance(host, stream, at(submitted, stream));
    settle();
}

}  // namespace emulator

// What the host ordered: by streams, events and waits, not by when things happened to run.
// A stream counts what it is given; a clock says, for each stream, how much of that is known to have ended.
#pragma once
#include <cstdint>
#include <vector>

namespace emulator {

using StreamClock = std::vector<std::uint32_t>;  // by stream; what is missing is zero

inline std::uint32_t at(const StreamClock& clock, std::uint32_t stream) {
    return stream < clock.size() ? clock[stream] : 0;
}

void join(StreamClock& into, const StreamClock& from);

// One piece of work in a stream's order: a launch, the host's own, or an event.
struct Ticket {
    std::uint32_t stream = 0;
    std::uint32_t sequence = 0;
    StreamClock after;  // what it waited for
};

std::uint32_t create_stream();
// Its number may be given out again; its count goes on.
void close_stream(std::uint32_t stream);

// The number of a new ticket. The second form is for launches that the caller waits for: each OS thread has a stream of
// its own for them.
std::uint32_t submit(std::uint32_t stream);
std::uint32_t submit_synchronous();
// What is submitted as `ticket` was given the array at `address`.
void note_use(std::uint32_t ticket, std::uintptr_t address, bool writes);
// Whether the host has waited for everybody that was given the array at `address` and that it would race with.
bool may_host_touch(std::uintptr_t address, bool write);
// For as long as the host has not waited for it.
Ticket ticket_of(std::uint32_t number);

void host_waits(std::uint32_t ticket);
void host_waits_for_stream(std::uint32_t stream);

}  // namespace emulator

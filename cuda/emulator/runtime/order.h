// What the host ordered: by streams, events and waits, not by when things happened to run.
// A stream counts its launches; a clock says, for each stream, how many of them are known to have ended.
#pragma once
#include <cstdint>

namespace emulator {

std::uint32_t create_stream();

// A ticket for a launch in the stream's order. The second form is for launches that the caller waits for: each OS thread
// has a stream of its own for them.
std::uint32_t submit(std::uint32_t stream);
std::uint32_t submit_synchronous();

std::uint32_t record_event(std::uint32_t stream);
void stream_waits_for_event(std::uint32_t stream, std::uint32_t event);

void host_waits_for_event(std::uint32_t event);
void host_waits_for_stream(std::uint32_t stream);
void host_waits_for_launch(std::uint32_t ticket);

// Whether the launch `later` was made to wait, directly or not, for the end of `earlier`.
bool is_launch_ordered(std::uint32_t earlier, std::uint32_t later);

}  // namespace emulator

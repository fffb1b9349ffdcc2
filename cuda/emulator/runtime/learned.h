// What launches learnt by acquiring: those that follow them in the host's order know it from their start.
#pragma once
#include <memory>

#include "knowledge.h"
#include "order.h"

namespace emulator {

std::shared_ptr<const Foreign> learned_before(const Ticket& ticket);
// Called when the launch has ended, before its stream goes on.
void keep_learned(const Ticket& ticket, Foreign learned);
// Whatever may still run waited for `horizon`.
void forget_learned(const StreamClock& horizon);

}  // namespace emulator

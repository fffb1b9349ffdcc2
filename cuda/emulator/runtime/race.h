// Check mode's memory: who touched which bytes, and who has learnt of it.
#pragma once
#include <cstdint>
#include <vector>

#include "launch.h"
#include "worker.h"

namespace emulator {

struct AsyncCopy;

class BlockHistory {
  public:
    BlockHistory(Launch&, Worker&, Index3, unsigned char*) {}
    void synchronize(const std::vector<unsigned>&) {}
    void barrier(const std::vector<unsigned>&, const std::vector<unsigned>&, bool) {}
    void begin_copy(unsigned, const AsyncCopy&) {}
    void finish_copy(unsigned, const AsyncCopy&) {}
};

}  // namespace emulator

// SplitMix64: every choice of a launch follows from its seed, so a failing schedule can be run again.
#pragma once
#include <cstdint>

namespace emulator {

class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    unsigned below(unsigned bound) { return static_cast<unsigned>((next() >> 32) * bound >> 32); }

  private:
    std::uint64_t state_;
};

}  // namespace emulator

// A launch's choices: all follow from its seed, so that a failing schedule can be run again.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace emulator {

// SplitMix64.
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

enum class Order { first_in_first_out, random_thread, warp_priority };

// Which runnable thread of a block goes next. Three orders: each finds bugs that the others hide.
class ReadyQueue {
  public:
    ReadyQueue(Order order, unsigned num_threads, Random& random)
        : order_(order), random_(random), priority_((num_threads + 31) / 32) {
        std::iota(priority_.begin(), priority_.end(), 0u);
        shuffle_priorities();
        items_.reserve(num_threads * 2);
    }

    bool empty() const { return head_ == items_.size(); }
    void push(unsigned rank) { items_.push_back(rank); }

    unsigned pop() {
        unsigned rank = 0;
        switch (order_) {
            case Order::first_in_first_out: rank = items_[head_++]; break;
            case Order::random_thread: rank = take(head_ + random_.below(size())); break;
            case Order::warp_priority: rank = take(most_urgent()); break;
        }
        if (head_ == items_.size() || head_ > 4096) compact();
        return rank;
    }

  private:
    unsigned size() const { return static_cast<unsigned>(items_.size() - head_); }

    unsigned take(std::size_t at) {
        unsigned rank = items_[at];
        items_[at] = items_.back();
        items_.pop_back();
        return rank;
    }

    // The warp in front runs as far as it can: what a uniform choice of thread practically never does.
    std::size_t most_urgent() {
        if (random_.below(512) == 0) shuffle_priorities();
        std::size_t best = head_;
        for (std::size_t i = head_ + 1; i < items_.size(); ++i)
            if (priority_[items_[i] / 32] < priority_[items_[best] / 32]) best = i;
        return best;
    }

    void shuffle_priorities() {
        for (std::size_t i = priority_.size(); i > 1; --i) std::swap(priority_[i - 1], priority_[random_.below(i)]);
    }

    void compact() {
        items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
        head_ = 0;
    }

    Order order_;
    Random& random_;
    std::vector<unsigned> priority_;
    std::vector<unsigned> items_;
    std::size_t head_ = 0;
};

}  // namespace emulator

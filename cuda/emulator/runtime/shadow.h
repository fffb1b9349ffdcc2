// Check mode's memory of memory: for every two bytes, the last write, two reads, and whether they were ever written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../include/emulator_abi.h"

namespace emulator {

// One access: who (threads are numbered over all blocks and launches), when on its clock, from where in the code.
struct Stamp {
    std::uint32_t thread = 0;  // 0: nobody
    std::uint32_t time = 0;
    std::uint64_t code : 55;
    std::uint64_t slot : 5;   // of the thread's process, in memory that processes share
    std::uint64_t bytes : 2;  // which of the two
    std::uint64_t atomic : 1;
    std::uint64_t pending : 1;  // a cp.async that its thread has not waited for
    Stamp() : code(0), slot(0), bytes(0), atomic(0), pending(0) {}
};

struct Cell {
    Stamp write;
    Stamp reads[2];  // of different warps if there are two; more readers than that are forgotten, never invented
    std::uint8_t written = 0;  // bit for each byte
};

class Ledger;

// The cells of one array or of one block's shared memory, made in runs of 4 KiB when first touched; a ledger's if there
// is one. Locked while cells are looked at.
class Shadow {
  public:
    static constexpr std::size_t run_bytes = 4096;

    explicit Shadow(std::size_t bytes) : runs_((bytes + run_bytes - 1) / run_bytes) {}
    explicit Shadow(std::shared_ptr<Ledger> ledger) : ledger_(std::move(ledger)) {}

    void lock();
    void unlock();
    Cell& cell(std::size_t offset);
    Ledger* ledger() const { return ledger_.get(); }

    // Of an array that processes do not share: nobody has touched it.
    void forget();

  private:
    std::mutex guard_;
    std::vector<std::unique_ptr<Cell[]>> runs_;
    std::shared_ptr<Ledger> ledger_;
};

// Where an access comes from, in the 55 bits of a stamp: a program counter, or the number of a source position.
std::uint64_t code_of(std::uintptr_t pc);
std::uint64_t code_of(Site site);
bool is_site(std::uint64_t code);
Site site_of(std::uint64_t code);

}  // namespace emulator

// Check mode's memory for an array that processes share: who touched what and what flags released, in memory that they
// share too. It lies beside the array under the array's name with `.ledger` behind it, sparse, zeros at first.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "knowledge.h"
#include "shadow.h"

namespace emulator {

class Ledger {
  public:
    // Every ledger that this process has open; whether there may be any.
    static std::vector<std::shared_ptr<Ledger>> all();
    static bool any();
    // Null if the system gives no memory or too many processes share the array.
    static std::shared_ptr<Ledger> open(const char* name, std::size_t bytes);
    static void unlink(const char* name);

    Ledger(void* base, std::size_t mapped_bytes, std::size_t array_bytes);
    ~Ledger();
    Ledger(const Ledger&) = delete;
    Ledger& operator=(const Ledger&) = delete;

    // One lock for the cells and the releases. It survives its holder's death.
    void lock();
    void unlock();

    Cell& cell(std::size_t offset) { return cells_[offset / 2]; }
    unsigned slot() const { return slot_; }  // how stamps name this process, from 1

    // Called with the lock of the runs held.
    void add_run(const BlockRun& run);
    void host_waited(const StreamClock& host);

    // Whether a launch of any of the processes has failed, and how much they got on with.
    bool has_failed() const;
    void fail();
    std::uint64_t progress() const;
    void note_progress();

    // The block that a thread of the process in `slot` belongs to; nothing if it is too old to be remembered.
    std::optional<BlockRun> run_of(unsigned slot, std::uint32_t thread) const;
    bool has_host_waited(unsigned slot, const BlockRun& run) const;
    std::uint32_t process_of(unsigned slot) const;

    void release(std::size_t flag, const Knowledge& knowledge);
    std::vector<Knowledge> released(std::size_t flag, std::uint64_t& version);

    // Whether the host of the block's process has waited for it; nothing if that process is not known here.
    std::optional<bool> has_host_waited(GlobalName block) const;

  private:
    struct Participant;
    struct Header;

    bool claim_slot();
    std::vector<std::uint32_t> encoded(const Knowledge& knowledge) const;

    std::size_t mapped_bytes_;
    Header* header_;
    std::uint32_t* journal_;  // a ring of records, each with the position of the flag's one before
    std::uint64_t* last_;     // by flag: 1 + where its newest record is
    Cell* cells_;
    unsigned slot_ = 0;
};

// Whether a block need not be named in what threads know: everything that may still run is ordered behind it.
bool is_forgettable(GlobalName block);

}  // namespace emulator

// One kernel launch: what Python asks for, and the first error that any of its threads met.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "../include/emulator_abi.h"
#include "knowledge.h"
#include "order.h"

namespace emulator {

// Filled by Python (`cuda/emulator/library.py` mirrors it field by field).
struct LaunchRequest {
    void (*entry)(void** args);
    void** args;
    const char* kinds;  // one letter for each argument, as Parameter has it
    std::uint64_t num_args;
    void* (*shared_anchor)();  // an address inside the module's thread-local (= shared) variables
    std::uint32_t grid[3];
    std::uint32_t block[3];
    std::uint32_t shared_bytes;
    std::uint32_t num_workers;
    std::uint64_t seed;
    std::uint32_t cooperative;
    std::uint32_t checked;
    std::uint32_t device;
    std::uint32_t ticket;  // in its stream's order; 0: the caller waits for it
    double watchdog_s;
};

struct ErrorReport {
    char kind[32];
    char message[8192];
    std::uint32_t block[3];
    std::uint32_t thread[3];
    std::uint32_t has_thread;
    std::int32_t line;
    char file[512];
    std::uint64_t pc;        // of the access that failed; 0 if `file` says it
    std::uint64_t other_pc;  // of the access it conflicts with
    std::uint64_t other_process;  // if not of this one
};

class Launch {
  public:
    Launch(const LaunchRequest& request, ErrorReport& report);
    ~Launch();
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    const LaunchRequest& request() const { return request_; }
    Index3 grid() const { return {request_.grid[0], request_.grid[1], request_.grid[2]}; }
    Index3 block() const { return {request_.block[0], request_.block[1], request_.block[2]}; }
    unsigned num_threads() const { return request_.block[0] * request_.block[1] * request_.block[2]; }

    // The first caller gets the report to fill; later failures are consequences.
    ErrorReport* claim_report();
    bool failed() const { return failed_.load(std::memory_order_relaxed); }
    // True once this launch, or one on another device since this one began, has failed.
    bool must_abort() const;

    const Ticket& ticket() const { return ticket_; }
    // Check mode: what earlier launches learnt, and what this one's blocks tell when they end.
    const Foreign& inherited() const { return *inherited_; }
    void add_learned(const Foreign& learned);

  private:
    const LaunchRequest& request_;
    ErrorReport& report_;
    std::atomic<bool> failed_{false};
    std::uint64_t failures_before_;
    std::uint32_t number_;
    Ticket ticket_;
    std::shared_ptr<const Foreign> inherited_;
    std::mutex guard_;
    Foreign learned_;
};

// Runs every block; returns when all have ended or one has failed.
void run(Launch& launch);

// What all launches of the process do apart from spinning: a block whose threads all spin watches it.
void note_progress();
std::uint64_t progress();

}  // namespace emulator

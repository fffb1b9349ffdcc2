// What a compiled .cu and the run-time share: the CUDA thread now running, and the calls that suspend it.
// Includes nothing, so that a .cu sees no libc name that CUDA would not give it. Read `runtime/block.cpp` next.
#pragma once

// Functions that report their accesses themselves keep check mode's hooks out.
#define EMULATOR_UNWATCHED __attribute__((no_sanitize_thread))

namespace emulator {

struct Index3 {
    unsigned x, y, z;
};

// A source position; taken where a CUDA built-in is called, by default arguments.
struct Site {
    const char* file;
    int line;
};

constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

struct Block;

// The part of a CUDA thread that kernels may look at. `current` points at the one running on this OS thread.
struct Thread {
    Index3 thread_index;
    Index3 block_index;
    Index3 block_dim;
    Index3 grid_dim;
    unsigned rank;  // linear index in its block
    unsigned lane;
    unsigned warp;
    Block* block;
};

extern __thread Thread* current __attribute__((tls_model("initial-exec")));

// One lane's share of a warp operation. It lives on the caller's stack; the last lane to arrive runs `compute` for all.
struct WarpCall {
    const char* operation;
    unsigned mask;
    Site site;
    void (*compute)(WarpCall* const* lanes, unsigned arrived);  // lanes[i] is null for a lane that is not there
};

void warp_rendezvous(WarpCall& call);

// Barrier `id` of the block for `count` threads (0: every live thread). `wait` false is bar.arrive.
void block_barrier(unsigned id, unsigned count, bool wait, const char* operation, Site site);
// __syncthreads_count and its kin: how many of the live threads gave a non-zero predicate.
unsigned block_vote(bool predicate, const char* operation, Site site);

// Lets every other thread run first. Whatever can be spun on calls it; `flag` is what may change meanwhile, if known.
void spin_point(const char* operation, Site site, const void* flag);

unsigned char* dynamic_shared();

// Ends the launch with an error at `site`, in the name of the current thread.
[[noreturn]] void fail(const char* kind, const char* message, Site site);
[[noreturn]] void fail_lane(const char* kind, const char* operation, unsigned lane, Site site);

// cp.async: copies `source_bytes` of 16 and zero-fills the rest, now or as late as the waits allow, by seed.
void async_copy(void* shared, const void* global, unsigned source_bytes, Site site);
void async_commit();
void async_wait(unsigned pending_groups);

// Check mode only (no-ops in fast mode): accesses made inside the shims, and the orders that atomics make.
void check_access(unsigned lane, const void* address, unsigned bytes, bool write, Site site);
enum class MemoryOrder { relaxed, acquire, release };
// `value` is what a release stores or an acquire has read: who reads an old value learns only what came with it.
void check_atomic(const void* address, unsigned bytes, MemoryOrder order, bool system_scope, unsigned value, Site site);
// After an atomic has read: what it saw released is learnt by the next fence.
void check_seen(const void* address);
void check_fence(bool system_scope);
unsigned long long nanoseconds();

}  // namespace emulator

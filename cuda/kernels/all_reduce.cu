// Computes  Among N ranks, a launch of each: the sum over all ranks' parts [T, E], and of each rank's columns of logits the
//           whole [R, V]. one_shot: out = sum; or with `norm` residual ← residual + sum, out = RMSNorm(residual) · weight.
//           two_shot: the sum goes to `sums` of every rank. gather_columns: the rows go to `logits` of every rank.
//           Parts, sums, out, residual, weight: bf16 or float; logits: float.
// Owns      one_shot: a block rows in turn, a thread vectors of 16 bytes of them. two_shot: a rank one contiguous N-th of
//           the vectors, shared out over its threads. gather_columns: a thread elements in turn.
// Traffic   one_shot: writes its part to N−1 peers, reads N parts. two_shot: reads one N-th of N parts and writes it to N
//           ranks. In 16-byte accesses; gather_columns in 4-byte ones, a warp's side by side. Then one flag a block and
//           peer: one_shot meets once, the others twice.
// Bound     Latency up to some hundred KB, 2-3 µs a meeting; above NVLink.
// Numerics  Parts are added in fp32 in rank order and rounded once, whatever the algorithm: all ranks get the same bits,
//           and those of add_rms_norm of that sum.
// Requires  A cooperative launch of the same grid on all ranks and always, at most 36 blocks of at least 8 threads; one
//           stream; E as add_rms_norm; slabs zeroed before the first call. Checked by all_reduce.py.
#include "norm_row.cuh"
#include "ptx.cuh"

constexpr i32 max_ranks = 8, max_blocks = 36;
constexpr u64 generations_at = 2048;

// A rank's slab: [flags | generations | slots × 2 | sums | parts | logits], each at the same offset in all of them.
//
//     part         written by                          read by
//     flags        the peer that each is of            the owner: [peer][block], how many meetings it has come to
//     generations  the owner, at a launch's end        the owner: [block], how many calls there were
//     slots        each peer its own, by parity        the owner, after the call's meeting
//     sums         each rank its N-th, after a first   the owner, after the second meeting and in later launches
//     parts        the owner's launches before         the owner, and after a first meeting its peers
//     logits       each rank its columns, as sums      the owner, as sums
//
// Nothing is overwritten while it is read. Slots: whoever writes those of call g has met all ranks in call g−1, so they
// have ended call g−2, which used the same slots. Sums, parts and logits: nobody writes or reads a peer's before a first
// meeting, to which the peer comes when its launches before have ended; and a call ends only after all have come to the
// second meeting, which each does when it has read its peers' parts.
struct Group {
    u64 slabs[max_ranks];  // where this rank addresses them
    u64* error;            // in the host's memory: who did not come, if this launch ends by a trap
    u64 timeout_ns;
    u64 slots, slot_bytes, sums, parts, logits;  // offsets
    i32 rank, num_ranks;
};

template <class T>
__device__ __forceinline__ T* in_slab(const Group& group, i32 owner, u64 offset) {
    return reinterpret_cast<T*>(group.slabs[owner] + offset);
}
__device__ __forceinline__ u32* flag_of(const Group& group, i32 owner, i32 peer) {
    return in_slab<u32>(group, owner, 0) + peer * max_blocks + blockIdx.x;
}
template <class T>
__device__ __forceinline__ T* slot_of(const Group& group, i32 owner, i32 peer, u32 generation) {
    const u64 number = generation % 2 * group.num_ranks + peer;
    return in_slab<T>(group, owner, group.slots + number * group.slot_bytes);
}

// Every block counts the calls for itself, so that no block waits for another to have read the count.
__device__ __forceinline__ u32* generation_of(const Group& group) {
    return in_slab<u32>(group, group.rank, generations_at) + blockIdx.x;
}
__device__ __forceinline__ u32 begin(const Group& group) { return *generation_of(group) + 1; }
// Behind a meeting, whose barriers keep this write behind every thread's read.
__device__ __forceinline__ void end(const Group& group, u32 generation) {
    if (threadIdx.x == 0) *generation_of(group) = generation;
}
// Numbers of the meetings of a call. A call of one meeting skips the first, so flags never fall behind; a peer that
// comes to the second while this rank still waits at the first has passed it, so one flag is enough.
__device__ __forceinline__ u32 first_of(u32 generation) { return 2 * generation; }
__device__ __forceinline__ u32 second_of(u32 generation) { return 2 * generation + 1; }

__device__ __forceinline__ void wait(const Group& group, i32 peer, u32 meeting) {
    const u32* flag = flag_of(group, group.rank, peer);
    const u64 deadline = ptx::global_timer_ns() + group.timeout_ns;
    for (bool is_late = false;;) {
        if (static_cast<i32>(ptx::load_acquire_system(flag) - meeting) >= 0) return;  // numbers wrap
        if (is_late) break;
        // The flag is read once more after the clock: who was itself stopped must not blame a peer that came meanwhile.
        is_late = ptx::global_timer_ns() > deadline;
    }
    *group.error = static_cast<u64>(meeting) << 32 | (peer + 1);
    __threadfence_system();  // the host reads it after the trap
    ptx::trap();
}

// Comes to a meeting, and goes on when the same block of every peer has: what they wrote before is there then.
__device__ __forceinline__ void meet(const Group& group, u32 meeting) {
    __syncthreads();  // nobody is told before all threads have written, and read, what the peers wait for
    const i32 peer = threadIdx.x;
    if (peer < group.num_ranks && peer != group.rank) {
        ptx::store_release_system(flag_of(group, peer, group.rank), meeting);
        wait(group, peer, meeting);
    }
    __syncthreads();  // nobody reads what a peer wrote, or overwrites what it reads, before it has come
}

// The sum of 16 bytes of every rank; `source` gives where a rank's are. −0 is what adding changes nothing to.
template <class T, class Source>
__device__ __forceinline__ Vector<T> total(const Group& group, Source source) {
    constexpr i32 width = Vector<T>::width;
    float sums[width];
#pragma unroll
    for (i32 i = 0; i < width; ++i) sums[i] = -0.0f;
#pragma unroll 4  // so many loads are on their way at once; more take registers that a block of 1,024 does not have
    for (i32 rank = 0; rank < max_ranks; ++rank) {
        if (rank >= group.num_ranks) break;
        const Vector<T> part = load_vector(source(rank));
#pragma unroll
        for (i32 i = 0; i < width; ++i) sums[i] = __fadd_rn(sums[i], to_float(part.elements[i]));
    }
    Vector<T> result;
#pragma unroll
    for (i32 i = 0; i < width; ++i) result.elements[i] = from_float<T>(sums[i]);
    return result;
}

template <class T, bool norm>
__global__ void __launch_bounds__(1024, 1)
one_shot(const __grid_constant__ Group group, i32 first_row, T* out, T* residual, const T* weight, i32 num_rows,
         i32 num_columns, float eps) {
    constexpr i32 width = Vector<T>::width;
    const u32 generation = begin(group);
    const T* part = in_slab<T>(group, group.rank, group.parts) + static_cast<i64>(first_row) * num_columns;
    for (i32 row = blockIdx.x; row < num_rows; row += gridDim.x)
        for (i32 column = threadIdx.x * width; column < num_columns; column += blockDim.x * width) {
            const i64 at = static_cast<i64>(row) * num_columns + column;
            const Vector<T> mine = load_vector(part + at);
            for (i32 n = 1; n < group.num_ranks; ++n) {  // each rank begins with another peer
                const i32 peer = (group.rank + n) % group.num_ranks;
                store_vector(slot_of<T>(group, peer, group.rank, generation) + at, mine);
            }
        }
    meet(group, second_of(generation));
    for (i32 row = blockIdx.x; row < num_rows; row += gridDim.x) {
        const i64 first = static_cast<i64>(row) * num_columns;
        const auto sum = [&](i32 column) {
            return total<T>(group, [&](i32 rank) {
                const T* slot = slot_of<T>(group, group.rank, rank, generation);
                return (rank == group.rank ? part : slot) + first + column;
            });
        };
        if constexpr (norm) {
            norm_row<T, true>(out + first, residual + first, weight, num_columns, eps, sum);
            __syncthreads();  // the next row's partial sums of squares do not overwrite this one's
        } else {
            for (i32 column = threadIdx.x * width; column < num_columns; column += blockDim.x * width)
                store_vector(out + first + column, sum(column));
        }
    }
    end(group, generation);
}

// Of the parts' vectors from `first_vector` on; sums begin with the first of them.
template <class T>
__global__ void __launch_bounds__(512)
two_shot(const __grid_constant__ Group group, i64 first_vector, i32 num_vectors) {
    constexpr i32 width = Vector<T>::width;
    const u32 generation = begin(group);
    meet(group, first_of(generation));
    const i32 share = (num_vectors + group.num_ranks - 1) / group.num_ranks;
    const i32 end_vector = min(num_vectors, (group.rank + 1) * share);
    const i32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (i32 vector = group.rank * share + thread; vector < end_vector; vector += gridDim.x * blockDim.x) {
        const Vector<T> sum = total<T>(group, [&](i32 rank) {
            return in_slab<const T>(group, rank, group.parts) + (first_vector + vector) * width;
        });
        for (i32 n = 0; n < group.num_ranks; ++n) {
            const i32 peer = (group.rank + n) % group.num_ranks;
            store_vector(in_slab<T>(group, peer, group.sums) + static_cast<i64>(vector) * width, sum);
        }
    }
    meet(group, second_of(generation));
    end(group, generation);
}

// `mine` [R, own columns] are columns `first` and following of `num_columns`.
extern "C" __global__ void __launch_bounds__(512)
gather_columns(const __grid_constant__ Group group, const float* mine, i32 num_rows, i32 first, i32 own_columns,
               i32 num_columns) {
    const u32 generation = begin(group);
    meet(group, first_of(generation));
    const i32 size = num_rows * own_columns;
    for (i32 i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        const i64 at = static_cast<i64>(i / own_columns) * num_columns + first + i % own_columns;
        for (i32 n = 0; n < group.num_ranks; ++n) {
            const i32 peer = (group.rank + n) % group.num_ranks;
            in_slab<float>(group, peer, group.logits)[at] = mine[i];
        }
    }
    meet(group, second_of(generation));
    end(group, generation);
}

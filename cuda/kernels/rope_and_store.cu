// Computes  for every q and k head row x of a token: x ← x / sqrt(mean(x²) + eps) · norm, if the model has norms; then
//           (low, high) ← (low·cos − high·sin, high·cos + low·sin) over its halves. q stays in qkv [T, (H+2K)·D]; k and
//           v go to pool [pages, 2, K, S, D] at page page_tables[slot, position / S], place position % S.
// Owns      A block owns up to 128 / L head rows of one token. A group of L lanes owns a head row: a lane holds one
//           16-byte vector of each half, so that what it rotates never leaves it; L is the power of two that covers
//           half a row.
// Traffic   Reads q, k and v once, writes them once, in 16-byte accesses; and 4·D bytes of the table a token, which
//           its heads share through L1. No shared memory.
// Bound     Latency: 64 tokens of Llama-8B move 1.6 MB, 0.3 µs of HBM; in long prefills memory. At most 56 registers,
//           so that 9 blocks (36 warps) fit a multiprocessor, each thread with two loads of 16 bytes in flight.
// Numerics  fp32 from load to store, one rounding. Squares add up in an order that depends on D alone: a row's bits do
//           not depend on its batch. v is copied bit by bit. Tolerance: 1 ulp of T.
// Requires  Half a row a multiple of 16 bytes, at most 32 of them; blockDim.x = 128; positions within the table and
//           the page table. Sizes are checked by rope_and_store.py. A token of slot −1 is left alone, and nothing is
//           stored to a page outside the pool.
#include "common.cuh"

// Every lane gets the sum over its group of `num_lanes`, a power of two.
__device__ __forceinline__ float group_sum(float value, i32 num_lanes) {
    for (i32 distance = num_lanes / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(full_warp, value, distance);
    return value;
}

template <class T> __device__ __forceinline__ float sum_of_squares(const Vector<T>& low, const Vector<T>& high) {
    float squares = 0.0f;
#pragma unroll
    for (i32 i = 0; i < Vector<T>::width; ++i) {
        const float first = to_float(low.elements[i]), second = to_float(high.elements[i]);
        squares = fmaf(second, second, fmaf(first, first, squares));
    }
    return squares;
}

// `cosines`, `sines` and `norm` begin at the lane's first element; `norm` is null where a model has none.
template <class T>
__device__ __forceinline__ void rotate(Vector<T>& low, Vector<T>& high, const float* cosines, const float* sines,
                                       const T* norm, i32 half, float scale) {
    Vector<T> low_factors{}, high_factors{};
    if (norm != nullptr) {
        low_factors = load_vector(norm);
        high_factors = load_vector(norm + half);
    }
#pragma unroll
    for (i32 begin = 0; begin < Vector<T>::width; begin += Vector<float>::width) {
        const Vector<float> cosine = load_vector(cosines + begin), sine = load_vector(sines + begin);
#pragma unroll
        for (i32 j = 0; j < Vector<float>::width; ++j) {
            const i32 i = begin + j;
            float first = to_float(low.elements[i]), second = to_float(high.elements[i]);
            if (norm != nullptr) {
                first *= scale * to_float(low_factors.elements[i]);
                second *= scale * to_float(high_factors.elements[i]);
            }
            low.elements[i] = from_float<T>(fmaf(first, cosine.elements[j], -__fmul_rn(second, sine.elements[j])));
            high.elements[i] = from_float<T>(fmaf(second, cosine.elements[j], __fmul_rn(first, sine.elements[j])));
        }
    }
}

template <class T>
__global__ void __launch_bounds__(128)
rope_and_store(T* qkv, T* pool, const i32* page_tables, const i32* token_slots, const i32* token_positions,
               const float* table, const T* q_norm, const T* k_norm, i32 num_heads, i32 num_kv_heads, i32 head_dim,
               i32 page_size, i32 num_pages, i32 max_pages, i32 num_lanes, float eps) {
    const i32 token = blockIdx.x, slot = token_slots[token];
    if (slot < 0) return;  // the whole block leaves
    const i32 position = token_positions[token], half = head_dim / 2, num_rows = num_heads + 2 * num_kv_heads;
    const i32 head = blockIdx.y * (blockDim.x / num_lanes) + threadIdx.x / num_lanes;
    const i32 column = threadIdx.x % num_lanes * Vector<T>::width;
    const bool owns = head < num_rows && column < half;

    T* const row = qkv + (static_cast<i64>(token) * num_rows + head) * head_dim + column;
    Vector<T> low{}, high{};
    if (owns) {
        low = load_vector(row);
        high = load_vector(row + half);
    }
    float scale = 1.0f;
    if (q_norm != nullptr)
        scale = rsqrtf(group_sum(sum_of_squares(low, high), num_lanes) / static_cast<float>(head_dim) + eps);
    if (!owns) return;

    if (head < num_heads + num_kv_heads) {
        const float* const cosines = table + static_cast<i64>(position) * head_dim + column;
        const T* const norm = head < num_heads ? q_norm : k_norm;
        rotate(low, high, cosines, cosines + half, norm == nullptr ? nullptr : norm + column, half, scale);
    }
    if (head < num_heads) {
        store_vector(row, low);
        store_vector(row + half, high);
        return;
    }
    const i64 page = page_tables[static_cast<i64>(slot) * max_pages + position / page_size];
    if (page < 0 || page >= num_pages) return;
    // Rows of a page are its K keys' slots, then its K values'.
    const i64 place = (page * 2 * num_kv_heads + (head - num_heads)) * page_size + position % page_size;
    store_vector(pool + place * head_dim + column, low);
    store_vector(pool + place * head_dim + column + half, high);
}

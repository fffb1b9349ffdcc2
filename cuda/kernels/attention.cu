// Computes  out[t, h] = softmax(scale · q[t, h] · kᵀ) · v over the keys that row (t, h) may see: positions up to its own,
//           the latest `window` of them if that is set, scores through cap · tanh(score / cap) if `soft_cap` is.
//           q: the first H·D columns of qkv [T, (H+2K)·D]; keys and values: pool [pages, 2, K, S, D] by way of
//           page_tables [slots, max_pages]; out: [T, H·D]. All of T = bf16 or float. Tokens of slot −1 become zeros.
// Owns      A block takes (item, KV head) pairs of the work list in a fixed grid. An item is a tile of rows (token, head
//           of the group) of one request. Up to 16 rows: each warp takes every fourth split of 128 keys for all rows.
//           More: each warp owns 16 rows and walks all splits, over tiles of keys that the block loads together.
//           In the second kernel a warp owns one row's partial results.
// Traffic   Keys and values once a tile, by cp.async of 16 bytes; q and out once. Where an item covers only some of its
//           rows' splits, D + 2 floats for each row and split are written and read once: 6 % of the keys' and values'
//           bytes for a bf16 group of 4. Shared memory 52-83 KB a block (see attention.py): rings of two or three tiles
//           of 4-8 KB a warp, 16-byte vectors swizzled against bank conflicts, and fp32 totals. Less of all at D of 16
//           and 32, which are for small models and not tuned.
// Bound     Decode: memory. An H200 needs 4.8 TB/s · 0.8 µs / 132 = 29 KB in flight a multiprocessor, a B200 43 KB;
//           2 blocks of 4 warps keep 64 KB on their way at D of 64, 128 and 256, 96 KB at 96, while a tile is computed
//           on. A short step takes as long as an item of 4 splits: 8 tiles a warp, one after the other.
//           Prefill: compute, at half of mma's rate at best, as every warp reads k and v from shared memory for 16 rows.
// Numerics  fp32 scores, (m, l, o) and merges, base 2; weights rounded to bf16 before they meet bf16 values. Keys are
//           visited in steps and splits counted from position 0, each split starts anew, and splits merge one after the
//           other: a row's bits depend on its position and its keys, not on tile, item, chunk or batch.
//           Tolerance: 2⁻⁷ of the largest value for bf16, 4e-6 for float.
// Requires  D of 16, 32, 64, 96, 128 or 256, any S, H a multiple of K, blockDim.x = 128: checked by attention.py. Items as
//           attention_plan.py makes them; those of more than 16 rows only up to D = 128. Pages outside the pool read as
//           zeros.
#include "attention_rows.cuh"
#include "attention_tiles.cuh"
#include "attention_total.cuh"

template <class T> struct Tensors {
    T* out;
    float* partial_outputs;
    float* partial_states;
    const T* qkv;
    const T* pool;
    const i32* page_tables;
};

template <class T, i32 dim>
__device__ __forceinline__ Loader<T, dim> loader_of(const Tensors<T>& tensors, const Sizes& sizes, const Item& item,
                                                    i32 kv_head, const Steps<T, dim>& steps, i32 end_key) {
    const i64 head_elements = static_cast<i64>(sizes.page_size) * dim;
    Loader<T, dim> loader{
        tensors.pool,
        tensors.page_tables + static_cast<i64>(item.slot) * sizes.max_pages,
        sizes.page_size,
        sizes.num_pages,
        sizes.first_visible(item.first_position + item.first_row / sizes.group()),
        end_key,
        2 * sizes.num_kv_heads * head_elements,
        kv_head * head_elements,
        sizes.num_kv_heads * head_elements,
        steps,
        static_cast<i32>(threadIdx.x % 32),
        -1,
    };
    loader.look_up();
    return loader;
}

// Steps of the item that this warp walks. Splits begin at multiples of their size, so that only a first step can lie
// before what the tile sees, and is not visited.
template <class T, i32 dim>
__device__ __forceinline__ Steps<T, dim> steps_of(const Item& item, i32 first_key, i32 end_key, i32 skipped,
                                                  i32 stride) {
    using Keys = KeyTile<T, dim>;
    const i32 begin = max((item.first_split + skipped) * Keys::steps_per_split, first_key / Keys::num_keys);
    const i32 end = min((item.first_split + item.num_splits) * Keys::steps_per_split,
                        (end_key + Keys::num_keys - 1) / Keys::num_keys);
    return {begin, end, stride};
}

// A tile of up to 16 rows. The total passes from warp to warp in the order of the splits.
template <class T, i32 dim>
__device__ __forceinline__ void attend_alone(const Tensors<T>& tensors, const Sizes& sizes, const Item& item,
                                             i32 kv_head, unsigned char* shared, float* weights) {
    using Keys = KeyTile<T, dim>;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const WarpRows own(item, sizes, kv_head, 0);
    const i32 first_key = sizes.first_visible(own.position(0)), end_key = own.position(item.num_rows - 1) + 1;
    Steps<T, dim> steps = steps_of<T, dim>(item, first_key, end_key, warp, num_warps);
    if (!steps.more()) return;

    unsigned char* const tiles = shared + warp * Keys::ring * Keys::bytes;
    WarpRing<T, dim> ring{tiles, loader_of(tensors, sizes, item, kv_head, steps, end_key), false, 0, 0};
#pragma unroll
    for (i32 i = 0; i < Keys::ring - 1; ++i) ring.ask();
    float* const passed = reinterpret_cast<float*>(shared + num_warps * Keys::ring * Keys::bytes);
    Total<T, dim> total{passed + 4 * 32, {}, {}};
    total.clear();
    Rows<T, dim> rows(own, sizes, tensors.qkv, weights, lane);
    rows.reset();
    for (; steps.more(); steps.advance()) {
        const i32 key = steps.step * Keys::num_keys;
        const bool all_visible =
            key + Keys::num_keys <= own.position(0) + 1 && key >= sizes.first_visible(end_key - 1);
        rows.weigh(ring.take(), key, all_visible, sizes);
        rows.add(ring.take());
        if (!steps.ends_split()) continue;
        rows.close();
        const i32 split = steps.step / Keys::steps_per_split, number = split - item.first_split;
        if (item.partial >= 0) {
            const i64 first = item.partial + static_cast<i64>(split - first_key / split_keys) * item.num_rows;
            write_partial<T, dim>(tensors.partial_outputs, tensors.partial_states, rows, own.num_rows, first, kv_head,
                                  sizes.num_kv_heads);
        } else {
            const bool is_first = number == 0, is_last = number == item.num_splits - 1;
            if (!is_first) {
                ptx::barrier_sync(1 + warp, 64);  // the total of the splits before is in shared memory
                total.take_states(passed, lane);
            }
            total.merge(rows, is_first, is_last);
            if (is_last) {
                write_out<T, dim>(tensors.out, rows, total, own, sizes.num_heads);
            } else {
                total.put_states(passed, lane);
                ptx::barrier_arrive(1 + (warp + 1) % num_warps, 64);  // the next warp may read the total
            }
        }
        rows.reset();
    }
}

// A tile of more rows, 16 a warp.
template <class T, i32 dim>
__device__ __forceinline__ void attend_together(const Tensors<T>& tensors, const Sizes& sizes, const Item& item,
                                                i32 kv_head, unsigned char* shared, float* weights) {
    using Keys = KeyTile<T, dim>;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const WarpRows tile(item, sizes, kv_head, 0), own(item, sizes, kv_head, warp * max_rows);
    const i32 end_key = tile.position(item.num_rows - 1) + 1;
    // A warp without rows takes part in the copies.
    const i32 own_first = own.num_rows > 0 ? sizes.first_visible(own.position(0)) : end_key;
    const i32 own_last = own.num_rows > 0 ? own.position(own.num_rows - 1) : -1;
    Steps<T, dim> steps = steps_of<T, dim>(item, sizes.first_visible(tile.position(0)), end_key, 0, 1);

    BlockRing<T, dim> ring{shared, loader_of(tensors, sizes, item, kv_head, steps, end_key), 0};
    ring.ask();
    float* const totals = reinterpret_cast<float*>(shared + 4 * Keys::bytes);
    Total<T, dim> total{totals + warp * Total<T, dim>::num_floats, {}, {}};
    total.clear();
    Rows<T, dim> rows(own, sizes, tensors.qkv, weights, lane);
    rows.reset();
    for (; steps.more(); steps.advance()) {
        const i32 key = steps.step * Keys::num_keys;
        const unsigned char* const keys = ring.take();
        if (key <= own_last && key + Keys::num_keys > own_first) {
            const bool all_visible =
                key + Keys::num_keys <= own.position(0) + 1 && key >= sizes.first_visible(own_last);
            rows.weigh(keys, key, all_visible, sizes);
            rows.add(keys + Keys::bytes);
        }
        if (!steps.ends_split()) continue;
        rows.close();
        const i32 number = steps.step / Keys::steps_per_split - item.first_split;
        total.merge(rows, number == 0, number == item.num_splits - 1);
        if (number == item.num_splits - 1) write_out<T, dim>(tensors.out, rows, total, own, sizes.num_heads);
        rows.reset();
    }
}

template <class T, i32 dim>
__global__ void __launch_bounds__(32 * num_warps, 2)
attention(T* out, float* partial_outputs, float* partial_states, const T* qkv, const T* pool, const i32* page_tables,
          const Item* items, const i32* counts, i32 num_heads, i32 num_kv_heads, i32 page_size, i32 num_pages,
          i32 max_pages, i32 window, float scale, float cap_scale) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr i32 weight_bytes = Rows<T, dim>::weight_bytes;
    float* const weights = reinterpret_cast<float*>(shared + threadIdx.x / 32 * weight_bytes);
    const Tensors<T> tensors{out, partial_outputs, partial_states, qkv, pool, page_tables};
    const Sizes sizes{num_heads, num_kv_heads, page_size, num_pages, max_pages, window, scale, cap_scale};
    const i64 num_works = static_cast<i64>(counts[0]) * num_kv_heads;
    for (i64 work = blockIdx.x; work < num_works; work += gridDim.x) {
        const Item item = items[work / num_kv_heads];
        const i32 kv_head = static_cast<i32>(work % num_kv_heads);
        unsigned char* const tiles = shared + num_warps * weight_bytes;
        if (item.num_rows <= max_rows)
            attend_alone<T, dim>(tensors, sizes, item, kv_head, tiles, weights);
        else if constexpr (dim <= 128)  // else totals of all warps and the tiles do not fit, nor do the registers
            attend_together<T, dim>(tensors, sizes, item, kv_head, tiles, weights);
        __syncthreads();  // no warp fills the shared memory of the next item while another still reads this one's
    }
}

// Merges the partial results of rows whose splits were shared out, in the order of the splits; clears padding rows.
template <class T, i32 dim>
__global__ void __launch_bounds__(32 * num_warps)
attention_combine(T* out, const float* partial_outputs, const float* partial_states, const Item* items,
                  const i32* counts, const i32* token_slots, i32 num_tokens, i32 num_heads, i32 num_kv_heads) {
    constexpr i32 num_columns = (dim + 31) / 32, ahead = 8;
    const i32 lane = threadIdx.x % 32, warp = blockIdx.x * num_warps + threadIdx.x / 32;
    const i32 all_warps = gridDim.x * num_warps;
    const bool has_columns = dim % 32 == 0 || lane < dim;
    const i64 width = static_cast<i64>(num_heads) * dim;
    for (i32 token = warp; token < num_tokens; token += all_warps) {
        if (token_slots[token] >= 0) continue;
        for (i64 n = lane * Vector<T>::width; n < width; n += 32 * Vector<T>::width)
            store_vector(out + token * width + n, Vector<T>{});
    }
    const Item* const tiles = items + counts[0];
    const i64 num_works = static_cast<i64>(counts[1]) * max_rows * num_kv_heads;
    for (i64 work = warp; work < num_works; work += all_warps) {
        const Item tile = tiles[work / (max_rows * num_kv_heads)];
        const i32 row = static_cast<i32>(work / num_kv_heads % max_rows);
        const i32 kv_head = static_cast<i32>(work % num_kv_heads);
        if (row >= tile.num_rows) continue;
        float highest = minus_infinity(), sum = 0.0f, output[num_columns] = {};
        for (i32 begin = 0; begin < tile.num_splits; begin += ahead) {
            float split_highest[ahead], split_sum[ahead], split_output[ahead][num_columns];
#pragma unroll
            for (i32 i = 0; i < ahead; ++i) {  // all loads before the first use
                const i64 split = begin + i;
                const i64 from = (tile.partial + split * tile.num_rows + row) * num_kv_heads + kv_head;
                const bool is_split = split < tile.num_splits;
                split_highest[i] = is_split ? partial_states[2 * from] : minus_infinity();
                split_sum[i] = is_split ? partial_states[2 * from + 1] : 0.0f;
#pragma unroll
                for (i32 n = 0; n < num_columns; ++n)
                    split_output[i][n] = is_split && has_columns ? partial_outputs[from * dim + 32 * n + lane] : 0.0f;
            }
#pragma unroll
            for (i32 i = 0; i < ahead; ++i) {
                const Merge merge(highest, split_highest[i]);
                highest = merge.highest;
                sum = merged(sum, merge.kept, split_sum[i], merge.added);
#pragma unroll
                for (i32 n = 0; n < num_columns; ++n)
                    output[n] = merged(output[n], merge.kept, split_output[i][n], merge.added);
            }
        }
        const float inverse = inverse_of(sum);
        const i32 group = num_heads / num_kv_heads, token = tile.first_token + (tile.first_row + row) / group;
        T* const to = out + token * width + (kv_head * group + (tile.first_row + row) % group) * dim + lane;
        if (!has_columns) continue;
#pragma unroll
        for (i32 n = 0; n < num_columns; ++n) to[32 * n] = from_float<T>(normalised(output[n], inverse));
    }
}

// Of attention.cu: tiles of rows and of keys, and keys and values on their way from the pool's pages to shared memory.
#pragma once
#include "common.cuh"
#include "ptx.cuh"

constexpr i32 num_warps = 4;
constexpr i32 max_rows = 16;  // of a warp
constexpr i32 split_keys = 128;

// A tile of rows and its share of splits. Row r of a request's tokens in this step is head r % G of the group of token
// r / G, G = H / K; token 0 is row `first_token` of qkv, at `first_position`.
struct Item {
    i32 slot, first_token, first_position, first_row, num_rows, first_split, num_splits;
    i32 partial;  // row of the partial results where the tile's first split goes; −1: the item covers all splits
};

struct Sizes {
    i32 num_heads, num_kv_heads, page_size, num_pages, max_pages, window;
    float scale, cap_scale;  // before exp2; before tanh, 0 without a soft cap

    __device__ i32 group() const { return num_heads / num_kv_heads; }
    __device__ i32 first_visible(i32 position) const { return window > 0 ? max(0, position + 1 - window) : 0; }
};

// The rows of one warp within a tile.
struct WarpRows {
    i32 num_rows, first_row, first_token, first_position, group, first_head;

    __device__ WarpRows(const Item& item, const Sizes& sizes, i32 kv_head, i32 skipped)
        : num_rows(max(0, min(max_rows, item.num_rows - skipped))), first_row(item.first_row + skipped),
          first_token(item.first_token), first_position(item.first_position), group(sizes.group()),
          first_head(kv_head * group) {}

    __device__ i32 position(i32 row) const { return first_position + (first_row + row) / group; }
    // Index of the row's first element in an array [T, `num_columns`] of which the heads are the first columns.
    __device__ i64 offset(i32 row, i64 num_columns, i32 dim) const {
        const i32 token = first_token + (first_row + row) / group, head = first_head + (first_row + row) % group;
        return token * num_columns + head * dim;
    }
};

// What is copied and visited at a time: some keys, or their values, as rows of 16-byte vectors.
template <class T, i32 dim> struct KeyTile {
    static constexpr i32 row_vectors = dim * static_cast<i32>(sizeof(T)) / 16;
    static constexpr i32 num_keys = row_vectors <= 16 ? 32 : row_vectors <= 32 ? 16 : 8;
    static constexpr i32 bytes = num_keys * row_vectors * 16;
    static constexpr i32 steps_per_split = split_keys / num_keys;
    static constexpr i32 ring = bytes > 6144 ? 2 : 3;  // tiles of a warp that works alone
    static_assert(num_keys * row_vectors % 32 == 0, "whole warps copy, as they exchange where the rows lie");

    // Where vector `even ^ odd` of a row begins: eight rows at one column lie in eight different groups of banks.
    // In unrolled loops `even` is a constant, of which all but the low bits are an offset known to the compiler.
    static __device__ __forceinline__ i32 place(i32 row, i32 odd, i32 even = 0) {
        const i32 turn = row_vectors % 8 == 0 ? row % 8 : row_vectors % 4 == 0 ? row / 2 % 4 : row / 4 % 2;
        return (row * row_vectors + even / 8 * 8) * 16 + (even % 8 ^ odd ^ turn) * 16;
    }
};

// Steps [step, end) of keys, in runs of a split with `stride` splits from one run to the next.
template <class T, i32 dim> struct Steps {
    i32 step, end, stride;

    __device__ bool more() const { return step < end; }
    __device__ bool ends_split() const {
        return (step + 1) % KeyTile<T, dim>::steps_per_split == 0 || step + 1 == end;
    }
    __device__ void advance() {
        ++step;
        if (step % KeyTile<T, dim>::steps_per_split == 0) step += (stride - 1) * KeyTile<T, dim>::steps_per_split;
    }
};

// Copies tiles of keys and values, asynchronously, ahead of their use.
template <class T, i32 dim> struct Loader {
    using Keys = KeyTile<T, dim>;

    const T* pool;
    const i32* table;
    i32 page_size, num_pages, first_key, end_key;  // keys outside are zeros: nobody sees them
    i64 page_elements, head_offset, value_offset;
    Steps<T, dim> steps;
    i32 lane;
    i32 page;  // of key lane % num_keys of the next step, read long before it is used

    __device__ void look_up() {
        const i32 key = steps.step * Keys::num_keys + lane % Keys::num_keys;
        page = steps.more() && key >= first_key && key < end_key ? table[key / page_size] : -1;
    }

    // Thread `rank` of `num_threads` copies its share; all lanes take part.
    __device__ void copy(unsigned char* tile, bool values, i32 rank, i32 num_threads) const {
        const i32 slot = (steps.step * Keys::num_keys + lane % Keys::num_keys) % page_size;
        const i64 own = page < 0 || page >= num_pages
                            ? -1
                            : page * page_elements + head_offset + slot * dim + (values ? value_offset : 0);
#pragma unroll 4
        for (i32 n = rank; n < Keys::num_keys * Keys::row_vectors; n += num_threads) {
            const i32 row = n / Keys::row_vectors, vector = n % Keys::row_vectors;
            const i64 from = __shfl_sync(full_warp, own, row);
            const T* const source = pool + (from < 0 ? 0 : from + vector * Vector<T>::width);
            ptx::cp_async_16(tile + Keys::place(row, vector), source, from < 0 ? 0 : 16);
        }
    }
};

// A warp that works alone on its splits: a ring of tiles, keys and values in turn. It waits for one tile and then asks
// for another, into the place of the tile that it has just used.
template <class T, i32 dim> struct WarpRing {
    using Keys = KeyTile<T, dim>;

    unsigned char* tiles;
    Loader<T, dim> loader;
    bool values;      // what is copied next
    i32 used, asked;  // places in the ring

    __device__ void ask() {
        if (loader.steps.more()) {
            loader.copy(tiles + asked * Keys::bytes, values, loader.lane, 32);
            if (values) {
                loader.steps.advance();
                loader.look_up();
            }
            values = !values;
        }
        ptx::cp_async_commit();
        asked = asked + 1 == Keys::ring ? 0 : asked + 1;
    }

    __device__ const unsigned char* take() {
        ptx::cp_async_wait<Keys::ring - 2>();
        __syncwarp();  // the tile is here for all lanes, and all lanes are done with the one before
        const unsigned char* const tile = tiles + used * Keys::bytes;
        used = used + 1 == Keys::ring ? 0 : used + 1;
        ask();
        return tile;
    }
};

// The block walks together: two pairs of tiles, one in use and one on its way.
template <class T, i32 dim> struct BlockRing {
    using Keys = KeyTile<T, dim>;

    unsigned char* tiles;
    Loader<T, dim> loader;
    i32 pair;  // that is copied next

    __device__ void ask() {
        if (loader.steps.more()) {
            unsigned char* const to = tiles + pair * 2 * Keys::bytes;
            loader.copy(to, false, threadIdx.x, 32 * num_warps);
            loader.copy(to + Keys::bytes, true, threadIdx.x, 32 * num_warps);
            loader.steps.advance();
            loader.look_up();
        }
        ptx::cp_async_commit();
        pair = 1 - pair;
    }

    __device__ const unsigned char* take() {
        ptx::cp_async_wait<0>();
        __syncthreads();  // the pair is here for all warps, and all warps are done with the one before
        const unsigned char* const keys = tiles + (1 - pair) * 2 * Keys::bytes;
        ask();
        return keys;
    }
};

// Of attention.cu: keys and values on their way from the pool's pages to shared memory.
#pragma once
#include "attention_rows.cuh"

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

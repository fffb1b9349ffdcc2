// Computes  embed: out[t] = table[tokens[slot[t], position[t]] − first_token]; take_rows: out[r] = x[index[r]];
//           scatter: table[update.row, update.column] = update.value for every update.
//           out: [rows, E], table: [V, E], x: [any, E], all of T = bf16 or float; the rest int32. A slot, token, index,
//           row or column that does not exist (−1 marks padding) gives a row of zeros; such an update does nothing.
// Owns      embed, take_rows: a block owns a row, its threads vectors of 16 bytes in turn. scatter: a thread an update.
// Traffic   Reads and writes each row once in 16-byte accesses; scatter 12 bytes in, 4 out, uncoalesced.
// Bound     Latency: a step moves few rows. Two dependent loads find a row of the table.
// Numerics  Copies bits.
// Requires  E a multiple of 16 bytes, rows aligned to 16 bytes; no cell updated twice in one scatter. The first is
//           checked by gather.py.
#include "common.cuh"

// `source` null: zeros.
template <class T>
__device__ __forceinline__ void fill_row(T* out, const T* source, i32 num_columns) {
    constexpr i32 width = Vector<T>::width;
    for (i32 column = threadIdx.x * width; column < num_columns; column += blockDim.x * width)
        store_vector(out + column, source != nullptr ? load_vector(source + column) : Vector<T>{});
}

template <class T>
__global__ void __launch_bounds__(256)
embed(T* out, const T* table, i32 first_token, i32 num_tokens, i32 num_columns, const i32* tokens, i32 num_slots,
      i32 stride, const i32* token_slots, const i32* token_positions) {
    const i32 slot = token_slots[blockIdx.x], position = token_positions[blockIdx.x];
    const T* source = nullptr;
    if (slot >= 0 && slot < num_slots && position >= 0 && position < stride) {
        const i32 token = tokens[static_cast<i64>(slot) * stride + position];
        if (token >= first_token && token - first_token < num_tokens)
            source = table + static_cast<i64>(token - first_token) * num_columns;
    }
    fill_row(out + static_cast<i64>(blockIdx.x) * num_columns, source, num_columns);
}

template <class T>
__global__ void __launch_bounds__(256)
take_rows(T* out, const T* x, i32 num_rows, i32 num_columns, const i32* indexes) {
    const i32 index = indexes[blockIdx.x];
    const T* source = index >= 0 && index < num_rows ? x + static_cast<i64>(index) * num_columns : nullptr;
    fill_row(out + static_cast<i64>(blockIdx.x) * num_columns, source, num_columns);
}

extern "C" __global__ void __launch_bounds__(256)
scatter(i32* table, i32 num_rows, i32 num_columns, const i32* updates, i32 num_updates) {
    const i32 number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= num_updates) return;
    const i64 first = 3 * static_cast<i64>(number);
    const i32 row = updates[first], column = updates[first + 1], value = updates[first + 2];
    if (row >= 0 && row < num_rows && column >= 0 && column < num_columns)
        table[static_cast<i64>(row) * num_columns + column] = value;
}

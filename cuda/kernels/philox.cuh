// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): the noise of every draw.
#pragma once
#include "common.cuh"

struct PhiloxWords {
    u32 word[4];
};

__device__ __forceinline__ PhiloxWords philox(u64 key, u32 c0, u32 c1, u32 c2, u32 c3) {
    u32 key0 = static_cast<u32>(key), key1 = static_cast<u32>(key >> 32);
#pragma unroll
    for (i32 round = 0; round < 10; ++round) {
        const u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

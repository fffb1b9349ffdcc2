// fp8 as a byte with conversions only: e4m3 (no infinities, largest 448).
#pragma once
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3 } __nv_fp8_interpretation_t;
struct __half_raw { unsigned short x; };

// Rounds to nearest, ties to even.
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate, __nv_fp8_interpretation_t) {
    constexpr int dropped = 20;            // bits of a float's fraction
    constexpr float smallest = 0x1p-9f;    // of which those below 2^-6 are multiples
    unsigned sign = __builtin_bit_cast(unsigned, x) >> 31 << 7;
    if (x != x) return 0x7f;
    unsigned bits = __builtin_bit_cast(unsigned, fabsf(x)), code;
    if (fabsf(x) < 0x1p-6f)
        code = static_cast<unsigned>(rintf(fabsf(x) / smallest));
    else
        code = ((bits + (1u << (dropped - 1)) - 1u + (bits >> dropped & 1u)) >> dropped) - (120u << 3);
    if (code > 0x7eu) code = saturate == __NV_SATFINITE ? 0x7eu : 0x7fu;
    return static_cast<__nv_fp8_storage_t>(sign | code);
}

static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t code, __nv_fp8_interpretation_t) {
    unsigned sign = (code & 0x80u) << 8, exponent = code >> 3 & 15u, fraction = code & 7u;
    if ((code & 0x7fu) == 0x7fu) return {0x7fff};
    if (exponent != 0) return {static_cast<unsigned short>(sign | (exponent + 8u) << 10 | fraction << 7)};
    return {static_cast<unsigned short>(sign | __float2half_rn(static_cast<float>(fraction) / 512.0f).bits)};
}

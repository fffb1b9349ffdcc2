// fp8 as a byte with conversions only: e4m3 (no infinities, largest 448) and e5m2 (largest 57344).
#pragma once
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;
struct __half_raw { unsigned short x; };

namespace emulator {

// The code of a magnitude by rounding to nearest, ties to even; it may lie beyond the largest finite one.
template <int mantissa_bits, int bias>
unsigned small_float_code(float magnitude) {
    constexpr int dropped = 23 - mantissa_bits;
    constexpr float denormals_per_one = static_cast<float>(1u << (bias - 1)) * static_cast<float>(1u << mantissa_bits);
    unsigned bits = __builtin_bit_cast(unsigned, magnitude);
    if (magnitude * denormals_per_one < static_cast<float>(1u << mantissa_bits))
        return static_cast<unsigned>(rintf(magnitude * denormals_per_one));
    bits += (1u << (dropped - 1)) - 1u + (bits >> dropped & 1u);
    return (bits >> dropped) - (static_cast<unsigned>(127 - bias) << mantissa_bits);
}

}  // namespace emulator

static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) {
    unsigned sign = __builtin_bit_cast(unsigned, x) >> 31 << 7;
    bool is_e4m3 = kind == __NV_E4M3;
    if (x != x) return static_cast<__nv_fp8_storage_t>(is_e4m3 ? 0x7f : 0x7e);
    unsigned code = is_e4m3 ? emulator::small_float_code<3, 7>(fabsf(x)) : emulator::small_float_code<2, 15>(fabsf(x));
    unsigned largest = is_e4m3 ? 0x7eu : 0x7bu, beyond = is_e4m3 ? 0x7fu : 0x7cu;
    if (code > largest) code = saturate == __NV_SATFINITE ? largest : beyond;
    return static_cast<__nv_fp8_storage_t>(sign | code);
}

static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t code, __nv_fp8_interpretation_t kind) {
    if (kind == __NV_E5M2) return {static_cast<unsigned short>(code << 8)};
    unsigned sign = (code & 0x80u) << 8, exponent = code >> 3 & 15u, fraction = code & 7u;
    if ((code & 0x7fu) == 0x7fu) return {0x7fff};
    if (exponent != 0) return {static_cast<unsigned short>(sign | (exponent + 8u) << 10 | fraction << 7)};
    return {static_cast<unsigned short>(sign | __float2half_rn(static_cast<float>(fraction) / 512.0f).bits)};
}

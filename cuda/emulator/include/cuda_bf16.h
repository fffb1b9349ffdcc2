// bfloat16 as a plain struct with conversions only; operators do not exist on either side.
#pragma once

struct alignas(2) __nv_bfloat16 { unsigned short bits; };

static inline float __bfloat162float(__nv_bfloat16 x) {
    return __builtin_bit_cast(float, static_cast<unsigned>(x.bits) << 16);
}
// Round to nearest, ties to even; NaN becomes the canonical one, as on the hardware.
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    unsigned bits = __builtin_bit_cast(unsigned, x);
    if (x != x) return {0x7fff};
    return {static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }

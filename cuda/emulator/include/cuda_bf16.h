// bfloat16 as a plain struct with conversions only; operators do not exist on either side (see KERNELS.md, rule 3).
#pragma once

struct alignas(2) __nv_bfloat16 { unsigned short bits; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 x) {
    return __builtin_bit_cast(float, static_cast<unsigned>(x.bits) << 16);
}
// Round to nearest, ties to even; NaN becomes the canonical one, as on the hardware.
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    unsigned bits = __builtin_bit_cast(unsigned, x);
    if (x != x) return {0x7fff};
    return {static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __floats2bfloat162_rn(x, x); }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
static inline float __low2float(__nv_bfloat162 v) { return __bfloat162float(v.x); }
static inline float __high2float(__nv_bfloat162 v) { return __bfloat162float(v.y); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {__bfloat162float(v.x), __bfloat162float(v.y)}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }

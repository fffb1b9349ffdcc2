// IEEE half as a plain struct with conversions only.
#pragma once

struct alignas(2) __half { unsigned short bits; };
struct alignas(4) __half2 { __half x, y; };
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half x) {
    unsigned sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31u, fraction = x.bits & 1023u;
    if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return __builtin_bit_cast(float, sign | (exponent + 112u) << 23 | fraction << 13);
    float magnitude = static_cast<float>(fraction) * (1.0f / 16777216.0f);  // denormals are multiples of 2^-24
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(unsigned, magnitude));
}
// Round to nearest, ties to even, through the exact arithmetic of float.
static inline __half __float2half_rn(float x) {
    unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {0x7fff};
    if (magnitude >= 0x477ff000u) return {static_cast<unsigned short>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 makes float round at 2^-24
        float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
        return {static_cast<unsigned short>(sign | (__builtin_bit_cast(unsigned, shifted) - 0x3f000000u))};
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1u);
    return {static_cast<unsigned short>(sign | ((magnitude >> 13) - (112u << 10)))};
}
static inline __half __float2half(float x) { return __float2half_rn(x); }
static inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline float __low2float(__half2 v) { return __half2float(v.x); }
static inline float __high2float(__half2 v) { return __half2float(v.y); }
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
static inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
static inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }

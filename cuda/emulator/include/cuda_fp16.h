// IEEE half as a plain struct with conversions only.
#pragma once

struct alignas(2) __half { unsigned short bits; };

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
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }

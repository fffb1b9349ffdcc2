// CUDA's math functions. libm is declared here by hand: its headers also declare `__expf`, which CUDA means otherwise.
// The fast intrinsics (`__expf` ...) are computed exactly: their error on a GPU is for the check on a GPU to see.
#pragma once

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

extern "C" {
float expf(float) noexcept; float exp2f(float) noexcept; float expm1f(float) noexcept; float logf(float) noexcept;
float log2f(float) noexcept; float log10f(float) noexcept; float log1pf(float) noexcept; float sqrtf(float) noexcept;
float sinf(float) noexcept; float cosf(float) noexcept; float tanhf(float) noexcept; float erff(float) noexcept;
float powf(float, float) noexcept; float fmodf(float, float) noexcept; float fmaf(float, float, float) noexcept;
float fminf(float, float) noexcept; float fmaxf(float, float) noexcept; float fabsf(float) noexcept;
float floorf(float) noexcept; float ceilf(float) noexcept; float truncf(float) noexcept; float rintf(float) noexcept;
float roundf(float) noexcept; float copysignf(float, float) noexcept; float ldexpf(float, int) noexcept;
double exp(double) noexcept; double log(double) noexcept; double sqrt(double) noexcept;
double pow(double, double) noexcept;
double sin(double) noexcept; double cos(double) noexcept; double fma(double, double, double) noexcept;
double fabs(double) noexcept; double floor(double) noexcept; double ceil(double) noexcept;
double fmin(double, double) noexcept; double fmax(double, double) noexcept;
int abs(int) noexcept;
}

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __expf(float x) { return expf(x); }
static inline float __exp2f(float x) { return exp2f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }

#define EMULATOR_MIN_MAX(T)                                        \
    static inline constexpr T min(T a, T b) { return b < a ? b : a; } \
    static inline constexpr T max(T a, T b) { return a < b ? b : a; }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned)
EMULATOR_MIN_MAX(long)
EMULATOR_MIN_MAX(unsigned long)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)
#undef EMULATOR_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
static inline int __float2int_rz(float x) { return static_cast<int>(x); }
static inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
static inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
static inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
static inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
static inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned pick = selector >> (4 * i) & 0xF;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7))) & 0xFF;
        if (pick & 8) byte = byte & 0x80 ? 0xFF : 0;
        result |= byte << (8 * i);
    }
    return result;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}

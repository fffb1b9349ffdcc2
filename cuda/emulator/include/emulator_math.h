// CUDA's math functions, as many as kernels use. libm is declared here by hand: its headers also declare `__expf`, which
// CUDA means otherwise. The fast intrinsics are computed exactly: their error on a GPU is for the check on a GPU to see.
#pragma once

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

extern "C" {
float expf(float) noexcept; float exp2f(float) noexcept; float logf(float) noexcept; float log1pf(float) noexcept;
float sqrtf(float) noexcept; float tanhf(float) noexcept; float fmaf(float, float, float) noexcept;
float fminf(float, float) noexcept; float fmaxf(float, float) noexcept; float fabsf(float) noexcept;
float rintf(float) noexcept;
double log(double) noexcept; double ceil(double) noexcept; double fma(double, double, double) noexcept;
}

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __expf(float x) { return expf(x); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }

#define EMULATOR_MIN_MAX(T)                                           \
    static inline constexpr T min(T a, T b) { return b < a ? b : a; } \
    static inline constexpr T max(T a, T b) { return a < b ? b : a; }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)
#undef EMULATOR_MIN_MAX

static inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
static inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}

// CUDA's vector types, with its alignments, and their constructors.
#pragma once

#define EMULATOR_VECTOR_2(T, name, alignment)              \
    struct alignas(alignment) name { T x, y; };            \
    static inline name make_##name(T x, T y) { return {x, y}; }
#define EMULATOR_VECTOR_3(T, name)                         \
    struct name { T x, y, z; };                            \
    static inline name make_##name(T x, T y, T z) { return {x, y, z}; }
#define EMULATOR_VECTOR_4(T, name, alignment)              \
    struct alignas(alignment) name { T x, y, z, w; };      \
    static inline name make_##name(T x, T y, T z, T w) { return {x, y, z, w}; }
#define EMULATOR_VECTORS(T, name)                          \
    struct name##1 { T x; };                               \
    static inline name##1 make_##name##1(T x) { return {x}; } \
    EMULATOR_VECTOR_2(T, name##2, 2 * sizeof(T))           \
    EMULATOR_VECTOR_3(T, name##3)                          \
    EMULATOR_VECTOR_4(T, name##4, (4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16))

EMULATOR_VECTORS(signed char, char)
EMULATOR_VECTORS(unsigned char, uchar)
EMULATOR_VECTORS(short, short)
EMULATOR_VECTORS(unsigned short, ushort)
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(unsigned, uint)
EMULATOR_VECTORS(long long, longlong)
EMULATOR_VECTORS(unsigned long long, ulonglong)
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#undef EMULATOR_VECTORS
#undef EMULATOR_VECTOR_4
#undef EMULATOR_VECTOR_3
#undef EMULATOR_VECTOR_2

// Included after a .cu: turns a kernel into a function of an array of argument pointers, and describes its parameters.
#pragma once

namespace emulator {

template <int... I> struct Indices {};

template <class T> constexpr char kind_of() {
    if constexpr (__is_enum(T) || __is_class(T)) return 's';
    else if (T(0.5f) != T(0)) return 'f';
    else return T(-1) < T(0) ? 'i' : 'u';
}
template <class T> struct Kind { static constexpr char value = kind_of<T>(); };
template <class T> struct Kind<T*> { static constexpr char value = 'p'; };
template <class T> struct Kind<const T*> { static constexpr char value = 'c'; };
template <> struct Kind<bool> { static constexpr char value = 'b'; };

template <class T> struct Bare { using type = T; };
template <class T> struct Bare<const T> { using type = T; };

template <class... P, int... I>
void call_with(void (*kernel)(P...), void** args, Indices<I...>) {
    kernel(*reinterpret_cast<typename Bare<P>::type*>(args[I])...);
}

template <class... P>
void call(void (*kernel)(P...), void** args) { call_with(kernel, args, Indices<__integer_pack(sizeof...(P))...>{}); }

// One kind letter and one byte of size for each parameter.
template <class... P>
const char* describe(void (*)(P...)) {
    static const char text[] = {static_cast<char>(sizeof...(P)), Kind<typename Bare<P>::type>::value...,
                                static_cast<char>(sizeof(P))..., 0};
    return text;
}

static thread_local char shared_anchor[16];

}  // namespace emulator

extern "C" __attribute__((visibility("default"))) void* emulator_shared_anchor() { return emulator::shared_anchor; }

#define EMULATOR_ENTRY(number, ...)                                                                                  \
    extern "C" __attribute__((visibility("default"))) void emulator_entry_##number(void** args) {                    \
        emulator::call(__VA_ARGS__, args);                                                                           \
    }                                                                                                                \
    extern "C" __attribute__((visibility("default"))) const char* emulator_signature_##number() {                    \
        return emulator::describe(__VA_ARGS__);                                                                      \
    }

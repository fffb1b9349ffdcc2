// Atomics are relaxed, as CUDA's are, and let other threads run first: loops over them are how kernels spin.
#pragma once

namespace emulator {

template <class T, class Update>
EMULATOR_UNWATCHED T atomic_update(const char* name, T* address, bool system_scope, Site site, Update update) {
    spin_point(name, site, address);
    check_atomic(address, sizeof(T), MemoryOrder::relaxed, system_scope, 0, site);
    static_assert(sizeof(T) == 4, "atomics are of 4 bytes");
    using Bits = __attribute__((may_alias)) unsigned;
    T old;
    unsigned seen = __atomic_load_n(reinterpret_cast<Bits*>(address), __ATOMIC_RELAXED), next;
    do {
        old = __builtin_bit_cast(T, seen);
        next = __builtin_bit_cast(unsigned, update(old));
    } while (!__atomic_compare_exchange_n(reinterpret_cast<Bits*>(address), &seen, next, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    check_seen(address);
    return old;
}

template <class T> struct identity { using type = T; };
template <class T> using plain = typename identity<T>::type;

}  // namespace emulator

#define EMULATOR_ATOMIC(name, expression)                                                                         \
    template <class T>                                                                                            \
    T atomic##name(T* address, emulator::plain<T> value, emulator::Site site = emulator::here()) {                \
        return emulator::atomic_update("atomic" #name, address, false, site, [=](T old) -> T { return expression; }); \
    }                                                                                                             \
    template <class T>                                                                                            \
    T atomic##name##_system(T* address, emulator::plain<T> value, emulator::Site site = emulator::here()) {       \
        return emulator::atomic_update("atomic" #name "_system", address, true, site,                             \
                                       [=](T old) -> T { return expression; });                                   \
    }
EMULATOR_ATOMIC(Add, old + value)
EMULATOR_ATOMIC(Exch, ((void)old, value))
EMULATOR_ATOMIC(Max, old < value ? value : old)
EMULATOR_ATOMIC(Or, old | value)
#undef EMULATOR_ATOMIC

EMULATOR_UNWATCHED static inline void __threadfence() {
    emulator::check_fence(false);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
EMULATOR_UNWATCHED static inline void __threadfence_system() {
    emulator::check_fence(true);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __nanosleep(unsigned, emulator::Site site = emulator::here()) {
    emulator::spin_point("__nanosleep", site, nullptr);
}

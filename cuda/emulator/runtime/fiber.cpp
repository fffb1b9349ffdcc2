// The switch saves what the System V (x86-64) and AAPCS64 (aarch64) ABIs call callee-saved; all else is the caller's.
#include "fiber.h"

#include <cstdint>

#if defined(__x86_64__)
asm(R"(
    .text
    .globl emulator_switch
    .hidden emulator_switch
    .type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulator_switch, .-emulator_switch
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl emulator_switch
    .hidden emulator_switch
    .type emulator_switch, %function
emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size emulator_switch, .-emulator_switch
)");
#else
#error "the CUDA emulator switches fibers on x86-64 and aarch64 only"
#endif

namespace emulator {

extern "C" void emulator_switch(void** save, void* load);

void prepare(Fiber& fiber, unsigned char* stack, std::size_t bytes, void (*entry)()) {
    auto* top = reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(stack + bytes) & ~std::uintptr_t{15});
#if defined(__x86_64__)
    top[-1] = nullptr;                          // the return address that `entry` never uses
    top[-2] = reinterpret_cast<void*>(entry);   // popped by `ret`, which leaves the stack as after a call
    for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
    fiber.stack_pointer = top - 8;
#else
    void** frame = top - 20;
    for (int i = 0; i < 20; ++i) frame[i] = nullptr;
    frame[11] = reinterpret_cast<void*>(entry);  // x30
    fiber.stack_pointer = frame;
#endif
}

void switch_fiber(Fiber& from, Fiber& to) { emulator_switch(&from.stack_pointer, to.stack_pointer); }

}  // namespace emulator

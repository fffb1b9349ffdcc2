// What -fsanitize=undefined calls in check mode. Every record begins with the source position; no more is needed here.
#include "../include/emulator_abi.h"

namespace {

struct Record {
    const char* file;
    unsigned line;
    unsigned column;
};

void stop(const void* data, const char* message, const char* kind = "undefined") {
    const auto* record = static_cast<const Record*>(data);
    if (emulator::current != nullptr)
        emulator::fail(kind, message, {record->file, static_cast<int>(record->line)});
}

}  // namespace

#define HANDLER extern "C" __attribute__((visibility("default")))
HANDLER void __ubsan_handle_add_overflow(void* data, void*, void*) { stop(data, "overflow in a signed addition"); }
HANDLER void __ubsan_handle_sub_overflow(void* data, void*, void*) { stop(data, "overflow in a signed subtraction"); }
HANDLER void __ubsan_handle_mul_overflow(void* data, void*, void*) { stop(data, "overflow in a signed product"); }
HANDLER void __ubsan_handle_negate_overflow(void* data, void*) { stop(data, "overflow in a negation"); }
HANDLER void __ubsan_handle_divrem_overflow(void* data, void*, void*) { stop(data, "division by zero or overflow"); }
HANDLER void __ubsan_handle_shift_out_of_bounds(void* data, void*, void*) { stop(data, "shift by the width or more"); }
HANDLER void __ubsan_handle_type_mismatch_v1(void* data, void*) {
    stop(data, "an address is not a multiple of its type's alignment", "misaligned");
}
HANDLER void __ubsan_handle_out_of_bounds(void* data, void*) { stop(data, "index outside of its array"); }

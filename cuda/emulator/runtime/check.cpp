// Check mode's ears: what -fsanitize=thread calls before every load and store, the shims' own reports, and what
// -fsanitize=undefined calls.
#include "block.h"

namespace emulator {
namespace {

Site site_in(std::uint64_t code) { return is_site(code) ? site_of(code) : Site{nullptr, 0}; }

void look(unsigned rank, const void* address, unsigned bytes, bool read, bool write, bool atomic, std::uint64_t code) {
    Block& block = *current->block;
    auto at = reinterpret_cast<std::uintptr_t>(address);
    Conflict conflict = block.history->access({rank, at, bytes, read, write, atomic, code});
    if (conflict.kind != nullptr) block.fail_conflict(rank, conflict, code);
}

bool is_checked() { return current != nullptr && current->block->history != nullptr; }

void hook(const void* address, unsigned bytes, bool write, bool aligned, void* return_address) {
    if (!is_checked() || current->block->is_private(reinterpret_cast<std::uintptr_t>(address))) return;
    std::uint64_t code = code_of(reinterpret_cast<std::uintptr_t>(return_address) - 1);
    if (aligned && reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
        current->block->fail_conflict(
            current->rank, {"misaligned", std::to_string(bytes) + " bytes at an address that is not a multiple of it", 0}, code);
    look(current->rank, address, bytes, !write, write, false, code);
}

// Every record of -fsanitize=undefined begins so; no more of it is needed here.
struct Record {
    const char* file;
    unsigned line;
    unsigned column;
};

void stop(const void* data, const char* message, const char* kind = "undefined") {
    const auto* record = static_cast<const Record*>(data);
    if (current != nullptr)
        fail(kind, message, {record->file, static_cast<int>(record->line)});
}

}  // namespace

void Block::fail_conflict(unsigned rank, const Conflict& conflict, std::uint64_t code) {
    Site other = site_in(conflict.other_code);
    std::uintptr_t other_pc = is_site(conflict.other_code) ? 0 : conflict.other_code;
    std::string message = conflict.message;
    if (other.file != nullptr) message += std::string(", at ") + other.file + ":" + std::to_string(other.line);
    fail(conflict.kind, message, site_in(code), threads[rank], is_site(code) ? 0 : code, other_pc,
         conflict.other_process);
}

void check_access(unsigned lane, const void* address, unsigned bytes, bool write, Site site) {
    if (is_checked()) look(current->warp * 32 + lane, address, bytes, !write, write, false, code_of(site));
}

void check_atomic(const void* address, unsigned bytes, MemoryOrder order, bool system_scope, unsigned value,
                  Site site) {
    if (!is_checked()) return;
    BlockHistory& history = *current->block->history;
    auto flag = reinterpret_cast<std::uintptr_t>(address);
    bool reads = order != MemoryOrder::release, writes = order != MemoryOrder::acquire;
    look(current->rank, address, bytes, reads, writes, true, code_of(site));
    switch (order) {
        case MemoryOrder::relaxed: history.relaxed(current->rank, flag, system_scope); break;
        case MemoryOrder::acquire: history.acquire(current->rank, flag, system_scope, value); break;
        case MemoryOrder::release: history.release(current->rank, flag, system_scope, value); break;
    }
}

void check_seen(const void* address) {
    if (is_checked()) current->block->history->see(current->rank, reinterpret_cast<std::uintptr_t>(address));
}

void check_fence(bool system_scope) {
    if (is_checked()) current->block->history->fence(current->rank, system_scope);
}

}  // namespace emulator

#define HOOK(name, bytes, write, aligned)                                           \
    extern "C" __attribute__((visibility("default"))) void name(void* address) {    \
        emulator::hook(address, bytes, write, aligned, __builtin_return_address(0)); \
    }
#define HOOKS(bytes)                                    \
    HOOK(__tsan_read##bytes, bytes, false, true)        \
    HOOK(__tsan_write##bytes, bytes, true, true)        \
    HOOK(__tsan_unaligned_read##bytes, bytes, false, false) \
    HOOK(__tsan_unaligned_write##bytes, bytes, true, false) \
    HOOK(__tsan_volatile_read##bytes, bytes, false, true)   \
    HOOK(__tsan_volatile_write##bytes, bytes, true, true)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" {
__attribute__((visibility("default"))) void __tsan_read_range(void* address, unsigned long bytes) {
    emulator::hook(address, static_cast<unsigned>(bytes), false, false, __builtin_return_address(0));
}
__attribute__((visibility("default"))) void __tsan_write_range(void* address, unsigned long bytes) {
    emulator::hook(address, static_cast<unsigned>(bytes), true, false, __builtin_return_address(0));
}
__attribute__((visibility("default"))) void __tsan_init() {}
__attribute__((visibility("default"))) void __tsan_func_entry(void*) {}
__attribute__((visibility("default"))) void __tsan_func_exit() {}
}

#define HANDLER extern "C" __attribute__((visibility("default")))
HANDLER void __ubsan_handle_add_overflow(void* data, void*, void*) { emulator::stop(data, "overflow in a signed addition"); }
HANDLER void __ubsan_handle_sub_overflow(void* data, void*, void*) { emulator::stop(data, "overflow in a signed subtraction"); }
HANDLER void __ubsan_handle_mul_overflow(void* data, void*, void*) { emulator::stop(data, "overflow in a signed product"); }
HANDLER void __ubsan_handle_negate_overflow(void* data, void*) { emulator::stop(data, "overflow in a negation"); }
HANDLER void __ubsan_handle_divrem_overflow(void* data, void*, void*) { emulator::stop(data, "division by zero or overflow"); }
HANDLER void __ubsan_handle_shift_out_of_bounds(void* data, void*, void*) { emulator::stop(data, "shift by the width or more"); }
HANDLER void __ubsan_handle_type_mismatch_v1(void* data, void*) {
    emulator::stop(data, "an address is not a multiple of its type's alignment", "misaligned");
}
HANDLER void __ubsan_handle_out_of_bounds(void* data, void*) { emulator::stop(data, "index outside of its array"); }

// The C functions that Python calls. Nothing here throws; errors are return values or an ErrorReport.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "launch.h"
#include "memory.h"
#include "order.h"
#include "worker.h"

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void* emulator_allocate(std::uint64_t bytes, int initialised) {
    return emulator::allocate(bytes, initialised != 0);
}
EXPORTED void* emulator_allocate_shared(const char* name, std::uint64_t bytes, int create) {
    return emulator::allocate_shared(name, bytes, create != 0);
}
EXPORTED void emulator_unlink_shared(const char* name) { emulator::unlink_shared(name); }
EXPORTED void emulator_free(void* pointer) { emulator::release(pointer); }
EXPORTED void emulator_mark_initialised(std::uint64_t address) { emulator::mark_initialised(address); }
EXPORTED std::uint32_t emulator_create_stream() { return emulator::create_stream(); }
EXPORTED void emulator_close_stream(std::uint32_t stream) { emulator::close_stream(stream); }
EXPORTED std::uint32_t emulator_submit(std::uint32_t stream) { return emulator::submit(stream); }
EXPORTED void emulator_note_use(std::uint32_t ticket, std::uint64_t address, int writes) {
    emulator::note_use(ticket, address, writes != 0);
}
EXPORTED int emulator_may_host_touch(std::uint64_t address, int write) {
    return emulator::may_host_touch(address, write != 0) ? 1 : 0;
}
EXPORTED void emulator_host_waits(std::uint32_t ticket) { emulator::host_waits(ticket); }
EXPORTED void emulator_host_waits_for_stream(std::uint32_t stream) { emulator::host_waits_for_stream(stream); }
EXPORTED void emulator_note_progress() { emulator::note_progress(); }
EXPORTED std::uint64_t emulator_request_bytes() { return sizeof(emulator::LaunchRequest); }
EXPORTED std::uint64_t emulator_report_bytes() { return sizeof(emulator::ErrorReport); }

// Which loaded file `pc` is in, and where in it. 0 if in none.
EXPORTED int emulator_locate(std::uint64_t pc, char* path, std::uint64_t capacity, std::uint64_t* offset) {
    Dl_info module{};
    if (dladdr(reinterpret_cast<void*>(pc), &module) == 0 || std::strlen(module.dli_fname) >= capacity) return 0;
    std::strcpy(path, module.dli_fname);
    *offset = pc - reinterpret_cast<std::uint64_t>(module.dli_fbase);
    return 1;
}

// 0 if every block ended, 1 if `report` says why not.
EXPORTED int emulator_launch(const emulator::LaunchRequest* request, emulator::ErrorReport* report) {
    emulator::catch_faults();
    emulator::Launch launch(*request, *report);
    emulator::run(launch);
    return launch.failed() ? 1 : 0;
}
}

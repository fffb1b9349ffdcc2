#include "shared_segment.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>

// The C library's own lookup. `dlpi_tls_data` is not enough: it stays null where a module got room in static TLS.
struct ThreadLocalIndex {
    unsigned long module;
    unsigned long offset;
};
extern "C" void* __tls_get_addr(ThreadLocalIndex*);

namespace emulator {
namespace {

struct Search {
    std::uintptr_t module;
    SharedSegment found;
};

int visit(dl_phdr_info* info, std::size_t, void* data) {
    auto* search = static_cast<Search*>(data);
    if (info->dlpi_addr != search->module) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i)
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            ThreadLocalIndex start{info->dlpi_tls_modid, 0};
            search->found = {static_cast<unsigned char*>(__tls_get_addr(&start)), info->dlpi_phdr[i].p_memsz};
        }
    return 1;
}

}  // namespace

SharedSegment shared_segment(void* (*anchor)()) {
    anchor();
    Dl_info module{};
    dladdr(reinterpret_cast<void*>(anchor), &module);
    Search search{reinterpret_cast<std::uintptr_t>(module.dli_fbase), {nullptr, 0}};
    dl_iterate_phdr(visit, &search);
    return search.found;
}

}  // namespace emulator

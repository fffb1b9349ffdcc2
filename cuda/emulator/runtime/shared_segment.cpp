#include "shared_segment.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>

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
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            search->found = {static_cast<unsigned char*>(info->dlpi_tls_data), info->dlpi_phdr[i].p_memsz};
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

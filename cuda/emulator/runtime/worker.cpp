// Mappings and signal handling. A fault is reported by jumping out of the fiber: kernels own nothing to unwind.
#include "worker.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>

// The C library's own lookup. `dlpi_tls_data` is not enough: it stays null where a module got room in static TLS.
struct ThreadLocalIndex {
    unsigned long module;
    unsigned long offset;
};
extern "C" void* __tls_get_addr(ThreadLocalIndex*);

namespace emulator {
namespace {

constexpr std::size_t guard_bytes = 16 << 20;
constexpr std::size_t signal_stack_bytes = 64 << 10;
constexpr std::uint64_t canary = 0xC0FFEE5AFEC0FFEEull;

thread_local std::unique_ptr<Worker> this_worker;

unsigned char* map_between_guards(std::size_t bytes) {
    void* base = mmap(nullptr, bytes + 2 * guard_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) abort();
    auto* begin = static_cast<unsigned char*>(base) + guard_bytes;
    mprotect(begin, bytes, PROT_READ | PROT_WRITE);
    return begin;
}

void unmap_between_guards(unsigned char* begin, std::size_t bytes) {
    munmap(begin - guard_bytes, bytes + 2 * guard_bytes);
}

struct sigaction previous[NSIG];  // by signal

std::uintptr_t program_counter(const void* context) {
    const auto* machine = &static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    return static_cast<std::uintptr_t>(machine->gregs[REG_RIP]);
#elif defined(__aarch64__)
    return machine->pc;
#else
    return 0;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
    Worker* worker = Worker::existing();
    if (worker == nullptr || !worker->in_fiber) {
        sigaction(signal, &previous[signal], nullptr);  // not ours: the access faults again under its own handler
        return;
    }
    worker->fault_address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    worker->fault_pc = program_counter(context);
    siglongjmp(worker->landing, signal);
}

struct Search {
    std::uintptr_t module;
    unsigned char* begin;
    std::size_t bytes;
};

int find_segment(dl_phdr_info* info, std::size_t, void* data) {
    auto* search = static_cast<Search*>(data);
    if (info->dlpi_addr != search->module) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i)
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            ThreadLocalIndex start{info->dlpi_tls_modid, 0};
            search->begin = static_cast<unsigned char*>(__tls_get_addr(&start));
            search->bytes = info->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

}  // namespace

Worker& Worker::of_this_os_thread() {
    if (!this_worker) this_worker = std::make_unique<Worker>();
    return *this_worker;
}

Worker* Worker::existing() { return this_worker.get(); }

Worker::Worker()
    : stacks_(map_between_guards(stack_bytes * max_threads)),
      shared_(map_between_guards(max_shared_bytes)),
      shared_end_(shared_ + max_shared_bytes),
      signal_stack_(map_between_guards(signal_stack_bytes)) {
    stack_t stack{};
    stack.ss_sp = signal_stack_;
    stack.ss_size = signal_stack_bytes;
    sigaltstack(&stack, nullptr);
}

Worker::~Worker() {
    stack_t stack{};
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, nullptr);
    unmap_between_guards(stacks_, stack_bytes * max_threads);
    unmap_between_guards(shared_, max_shared_bytes);
    unmap_between_guards(signal_stack_, signal_stack_bytes);
}

// A guard page for each fiber would exhaust vm.max_map_count; a word at the low end tells of an overflow soon after.
void Worker::mark_stack(unsigned rank) const { *reinterpret_cast<std::uint64_t*>(stack_of(rank)) = canary; }
bool Worker::stack_is_whole(unsigned rank) const { return *reinterpret_cast<std::uint64_t*>(stack_of(rank)) == canary; }

void Worker::take_static_shared(void* (*anchor)()) {
    anchor();
    Dl_info module{};
    dladdr(reinterpret_cast<void*>(anchor), &module);
    Search search{reinterpret_cast<std::uintptr_t>(module.dli_fbase), nullptr, 0};
    dl_iterate_phdr(find_segment, &search);
    static_shared = search.begin;
    static_shared_bytes = search.bytes;
}

void catch_faults() {
    static std::mutex guard;
    std::lock_guard<std::mutex> lock(guard);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        struct sigaction now {};
        sigaction(signal, nullptr, &now);
        if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) continue;
        previous[signal] = now;
        sigaction(signal, &action, nullptr);
    }
}

}  // namespace emulator

#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace emulator {

constexpr unsigned max_participants = 31;  // as many as a stamp can name
constexpr std::uint32_t max_streams = 1024;
constexpr std::uint64_t max_runs = 1 << 16;
constexpr std::uint64_t journal_words = 4 << 20;

// One process. It alone writes here, others read.
struct Ledger::Participant {
    std::atomic<std::uint32_t> process;
    std::atomic<std::uint32_t> host[max_streams];  // what its host has waited for
    std::atomic<std::uint64_t> num_runs;
    BlockRun runs[max_runs];  // a ring, by base
};

struct Ledger::Header {
    std::atomic<std::uint32_t> holder;  // the process that holds the lock
    std::atomic<bool> has_failed;
    std::atomic<std::uint64_t> progress;
    std::uint64_t position;             // where the next record goes
    Participant participants[max_participants];
};

namespace {

std::mutex ledger_guard;
std::vector<std::weak_ptr<Ledger>> opened;
std::atomic<bool> has_opened{false};

std::string file_of(const char* name) { return std::string(name) + ".ledger"; }

void push_name(std::vector<std::uint32_t>& words, GlobalName name) {
    words.push_back(static_cast<std::uint32_t>(name));
    words.push_back(static_cast<std::uint32_t>(name >> 32));
}

// Run lengths: after a barrier all of a block's clocks are equal.
void push_clocks(std::vector<std::uint32_t>& words, const Clocks& clocks) {
    words.push_back(static_cast<std::uint32_t>(clocks.size()));
    for (std::size_t at = 0; at < clocks.size();) {
        std::size_t end = at;
        while (end < clocks.size() && clocks[end] == clocks[at]) ++end;
        words.push_back(static_cast<std::uint32_t>(end - at));
        words.push_back(clocks[at]);
        at = end;
    }
}

struct Reader {
    const std::uint32_t* ring;
    std::uint64_t position;

    std::uint32_t word() { return ring[position++ % journal_words]; }
    std::uint64_t wide() {
        std::uint64_t low = word();
        return static_cast<std::uint64_t>(word()) << 32 | low;
    }
    std::shared_ptr<const Clocks> clocks() {
        std::uint32_t size = word();
        auto clocks = std::make_shared<Clocks>();
        while (clocks->size() < size) {
            std::uint32_t count = word();
            clocks->insert(clocks->end(), count, word());
        }
        return clocks;
    }
    Knowledge knowledge() {
        Knowledge knowledge;
        knowledge.device = word();
        knowledge.system_scope = word() != 0;
        knowledge.has_value = word() != 0;
        knowledge.value = word();
        for (std::uint32_t left = word(); left > 0; --left) {
            GlobalName base = wide();
            knowledge.known.blocks[base] = clocks();
        }
        for (std::uint32_t left = word(); left > 0; --left) {
            GlobalName stream = wide();
            knowledge.known.launches[stream] = word();
        }
        return knowledge;
    }
};

}  // namespace

std::vector<std::shared_ptr<Ledger>> Ledger::all() {
    std::lock_guard<std::mutex> held(ledger_guard);
    std::vector<std::shared_ptr<Ledger>> alive;
    for (const auto& each : opened)
        if (auto ledger = each.lock()) alive.push_back(std::move(ledger));
    return alive;
}

std::shared_ptr<Ledger> Ledger::open(const char* name, std::size_t bytes) {
    int file = shm_open(file_of(name).c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0) return nullptr;
    std::size_t mapped = sizeof(Header) + 4 * journal_words + bytes / 4 * 8 + bytes / 2 * sizeof(Cell);
    void* base = MAP_FAILED;
    if (ftruncate(file, static_cast<off_t>(mapped)) == 0)
        base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    ::close(file);
    if (base == MAP_FAILED) return nullptr;
    auto ledger = std::make_shared<Ledger>(base, mapped, bytes);
    if (!ledger->claim_slot()) return nullptr;
    std::lock_guard<std::mutex> held(ledger_guard);
    opened.erase(std::remove_if(opened.begin(), opened.end(), [](const auto& each) { return each.expired(); }),
                 opened.end());
    opened.push_back(ledger);
    has_opened = true;
    return ledger;
}

bool Ledger::any() { return has_opened.load(std::memory_order_relaxed); }

void Ledger::unlink(const char* name) { shm_unlink(file_of(name).c_str()); }

Ledger::Ledger(void* base, std::size_t mapped_bytes, std::size_t array_bytes)
    : mapped_bytes_(mapped_bytes),
      header_(static_cast<Header*>(base)),
      journal_(reinterpret_cast<std::uint32_t*>(header_ + 1)),
      last_(reinterpret_cast<std::uint64_t*>(journal_ + journal_words)),
      cells_(reinterpret_cast<Cell*>(last_ + array_bytes / 4)) {}

Ledger::~Ledger() { munmap(header_, mapped_bytes_); }

bool Ledger::claim_slot() {
    auto own = static_cast<std::uint32_t>(getpid());
    for (unsigned i = 0; i < max_participants && slot_ == 0; ++i) {
        std::uint32_t process = 0;
        if (header_->participants[i].process.compare_exchange_strong(process, own) || process == own) slot_ = i + 1;
    }
    return slot_ != 0;
}

void Ledger::lock() {
    static const auto own = static_cast<std::uint32_t>(getpid());
    for (unsigned tries = 1;; ++tries) {
        std::uint32_t holder = 0;
        if (header_->holder.compare_exchange_weak(holder, own, std::memory_order_acquire)) return;
        if (tries > 64) sched_yield();
        bool is_dead = tries % 4096 == 0 && holder != 0 && kill(static_cast<pid_t>(holder), 0) != 0 && errno == ESRCH;
        if (is_dead) header_->holder.compare_exchange_strong(holder, 0);
    }
}

void Ledger::unlock() { header_->holder.store(0, std::memory_order_release); }

void Ledger::add_run(const BlockRun& run) {
    Participant& own = header_->participants[slot_ - 1];
    std::uint64_t count = own.num_runs.load(std::memory_order_relaxed);
    own.runs[count % max_runs] = run;
    own.num_runs.store(count + 1, std::memory_order_release);
}

void Ledger::host_waited(const StreamClock& host) {
    Participant& own = header_->participants[slot_ - 1];
    for (std::uint32_t stream = 0; stream < host.size() && stream < max_streams; ++stream)
        own.host[stream].store(host[stream], std::memory_order_release);
}

bool Ledger::has_failed() const { return header_->has_failed.load(std::memory_order_relaxed); }
void Ledger::fail() { header_->has_failed = true; }
std::uint64_t Ledger::progress() const { return header_->progress.load(std::memory_order_relaxed); }
void Ledger::note_progress() { header_->progress.fetch_add(1, std::memory_order_relaxed); }

std::optional<BlockRun> Ledger::run_of(unsigned slot, std::uint32_t thread) const {
    const Participant& other = header_->participants[slot - 1];
    std::uint64_t end = other.num_runs.load(std::memory_order_acquire), begin = end > max_runs ? end - max_runs : 0;
    while (begin < end) {  // the last whose base is not behind the thread
        std::uint64_t middle = begin + (end - begin) / 2;
        if (other.runs[middle % max_runs].base <= thread)
            begin = middle + 1;
        else
            end = middle;
    }
    if (begin == 0) return std::nullopt;
    BlockRun run = other.runs[(begin - 1) % max_runs];
    if (thread - run.base >= run.num_threads) return std::nullopt;
    return run;
}

bool Ledger::has_host_waited(unsigned slot, const BlockRun& run) const {
    if (run.stream >= max_streams) return true;
    return run.sequence <= header_->participants[slot - 1].host[run.stream].load(std::memory_order_acquire);
}

std::uint32_t Ledger::process_of(unsigned slot) const { return header_->participants[slot - 1].process.load(); }

void Ledger::release(std::size_t flag, const Knowledge& knowledge) {
    std::vector<std::uint32_t> words = encoded(knowledge);
    if (words.size() + 2 > journal_words / max_releases) {
        fputs("emulator: what a thread knew when it released is too much to keep for other processes\n", stderr);
        abort();
    }
    std::lock_guard<Ledger> held(*this);
    std::uint64_t position = header_->position, before = last_[flag / 4];
    std::uint32_t link[2] = {static_cast<std::uint32_t>(before), static_cast<std::uint32_t>(before >> 32)};
    words.insert(words.begin(), link, link + 2);
    for (std::size_t i = 0; i < words.size(); ++i) journal_[(position + i) % journal_words] = words[i];
    last_[flag / 4] = position + 1;
    header_->position = position + words.size();
}

std::vector<Knowledge> Ledger::released(std::size_t flag, std::uint64_t& version) {
    std::lock_guard<Ledger> held(*this);
    std::vector<Knowledge> newest_first;
    std::uint64_t next = last_[flag / 4];
    if (next == version) return {};
    version = next;
    while (next != 0 && header_->position - (next - 1) <= journal_words && newest_first.size() < max_releases) {
        Reader reader{journal_, next - 1};
        next = reader.wide();
        newest_first.push_back(reader.knowledge());
    }
    return {newest_first.rbegin(), newest_first.rend()};
}

std::optional<bool> Ledger::has_host_waited(GlobalName block) const {
    auto process = static_cast<std::uint32_t>(block >> 32), base = static_cast<std::uint32_t>(block);
    for (unsigned slot = 1; slot <= max_participants; ++slot) {
        if (process_of(slot) != process) continue;
        std::optional<BlockRun> run = run_of(slot, base);
        return run.has_value() && has_host_waited(slot, *run);
    }
    return std::nullopt;
}

bool is_forgettable(GlobalName block) {
    GlobalName first = global_name(0);
    if (block >> 32 == first >> 32) return block - first < oldest_thread();
    for (const auto& ledger : Ledger::all())
        if (std::optional<bool> has_waited = ledger->has_host_waited(block)) return *has_waited;
    return false;
}

std::vector<std::uint32_t> Ledger::encoded(const Knowledge& knowledge) const {
    std::vector<std::uint32_t> words{knowledge.device, knowledge.system_scope, knowledge.has_value, knowledge.value, 0};
    for (const auto& [base, clocks] : knowledge.known.blocks) {
        if (is_forgettable(base)) continue;
        push_name(words, base);
        push_clocks(words, *clocks);
        ++words[4];
    }
    words.push_back(static_cast<std::uint32_t>(knowledge.known.launches.size()));
    for (const auto& [stream, sequence] : knowledge.known.launches) {
        push_name(words, stream);
        words.push_back(sequence);
    }
    return words;
}

}  // namespace emulator

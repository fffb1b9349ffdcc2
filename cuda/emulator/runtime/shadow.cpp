#include "shadow.h"

#include <map>
#include <tuple>

#include "ledger.h"

namespace emulator {
namespace {

constexpr std::uint64_t site_tag = std::uint64_t{1} << 54;

std::mutex shadow_guard;
std::vector<Site>& sites() {
    static std::vector<Site> all;
    return all;
}

}  // namespace

void Shadow::lock() { ledger_ ? ledger_->lock() : guard_.lock(); }
void Shadow::unlock() { ledger_ ? ledger_->unlock() : guard_.unlock(); }

Cell& Shadow::cell(std::size_t offset) {
    if (ledger_) return ledger_->cell(offset);
    auto& run = runs_[offset / run_bytes];
    if (!run) run = std::make_unique<Cell[]>(run_bytes / 2);
    return run[offset % run_bytes / 2];
}

void Shadow::forget() {
    std::lock_guard<Shadow> lock(*this);
    for (auto& run : runs_) run.reset();
}

std::uint64_t code_of(std::uintptr_t pc) { return pc & (site_tag - 1); }

// `file` points into a module, which is never unloaded: equal positions have equal pointers within it.
std::uint64_t code_of(Site site) {
    static std::map<std::tuple<const char*, int>, std::uint64_t> numbers;
    std::lock_guard<std::mutex> lock(shadow_guard);
    auto [found, is_new] = numbers.try_emplace({site.file, site.line}, sites().size());
    if (is_new) sites().push_back(site);
    return site_tag | found->second;
}

bool is_site(std::uint64_t code) { return (code & site_tag) != 0; }

Site site_of(std::uint64_t code) {
    std::lock_guard<std::mutex> lock(shadow_guard);
    return sites()[code & (site_tag - 1)];
}

}  // namespace emulator

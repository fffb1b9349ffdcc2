#include "block.h"

namespace emulator {

void check_access(unsigned, const void*, unsigned, bool, Site) {}
void check_atomic(const void*, unsigned, bool, bool, bool, Site) {}
void check_fence(bool) {}

}  // namespace emulator

// core/posix/available_memory.h: how much memory there still is.
#pragma once

#include <cstdint>

namespace phalanx {

// Bytes that this process may still take: what the node has available, or less where a control
// group says so. 0: not known. Safe to call from any thread.
int64_t AvailableHostMemory();

}  // namespace phalanx

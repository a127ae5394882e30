// core/posix/process_usage.h: what this process uses of its machine.
#pragma once

#include <cstdint>

namespace phalanx {

struct ProcessUsage {
  int64_t resident_bytes = 0;
  double cpu_seconds = 0;        // user and system, of all its threads; without children
  int64_t open_descriptors = 0;  // without the one that they are counted with
};

// Memory of a process that is not swapped out. 0: it is not there, or the system does not tell.
// Thread-safe.
int64_t ResidentBytesOf(int pid);

// Now. What the system does not tell is 0. Thread-safe.
ProcessUsage UsageOfThisProcess();

}  // namespace phalanx

// tests/bench/faults/held.h: what processes hold of the system.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "nlohmann/json.hpp"

namespace phalanx::e2e {

struct Held {
  int64_t resident_kib = 0, descriptors = 0, processes = 0;
};

// Of these processes together; `processes` is how many they are. One that has ended holds nothing.
Held HeldBy(const std::vector<pid_t>& processes);
nlohmann::ordered_json ToJson(const Held& held);
// Whether `end` is no more than `first`, and a tenth of its resident memory.
bool IsFlat(const Held& first, const Held& end);

}  // namespace phalanx::e2e

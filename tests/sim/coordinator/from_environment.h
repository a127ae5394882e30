// tests/sim/coordinator/from_environment.h: the seeds that whoever runs a simulation asks for.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace phalanx::coordinator {

inline int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

}  // namespace phalanx::coordinator

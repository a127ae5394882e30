// tests/bench/profile/links.h: what NCCL carries between the first two GPUs of this machine, and
// what it takes of each.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/schedule/profile.h"

namespace phalanx::bench {

struct Links {
  schedule::LinkRate message;     // to the other, while as much comes from it
  schedule::LinkRate collective;  // bytes past each rank of an all-reduce; joules of sums
  // Of a device: by form, each the more of both ranks'.
  schedule::CommunicatorsBytes bytes;
};
// `idle_watts`: of one of them that waits. A rank is a thread. Errors: Unimplemented in a build
// without CUDA; those of communicators and of Board::Open.
absl::StatusOr<Links> MeasureLinks(double idle_watts);

}  // namespace phalanx::bench

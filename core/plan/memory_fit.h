// core/plan/memory_fit.h: whether what a plan needs fits into its devices. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/plan/memory_estimate.h"

namespace phalanx::plan {

// "17 B", "96.1 GiB".
std::string FormatBytes(int64_t bytes);

// `needs` of each rank against what its device has, in bytes; 0, or no entry: unknown, which fits.
// nullopt: all fit. Otherwise a sentence about the rank that lacks most:
// "rank 3 needs 96.1 GiB (optimizer 61.0 GiB is the largest term), device has 80.0 GiB", and how
// many others do not fit.
std::optional<std::string> MemoryShortage(absl::Span<const MemoryEstimate> needs,
                                          absl::Span<const int64_t> device_memory);

// What a plan needs by estimate against what the device of each of its ranks has, as above.
// Errors: InvalidArgument with that sentence as a violation of spec.modules. Of a plan that has
// lost ranks it names them, and the replica that is narrower where the rank stands: "without rank
// 1, rank 0 needs ...; replica 0 of module language is 1 wide there instead of 2".
absl::Status CheckMemory(const Plan& plan, absl::Span<const int64_t> device_memory);

}  // namespace phalanx::plan

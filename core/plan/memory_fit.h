// core/plan/memory_fit.h: whether what a plan needs fits into its devices, and what it needs beside
// them into their nodes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/plan/layout.h"
#include "core/plan/memory_estimate.h"

namespace phalanx::plan {

// "17 B", "96.1 GiB".
std::string FormatBytes(int64_t bytes);

// What there is for a plan, in bytes. 0, or no entry: unknown, which holds anything.
struct MemoryLimits {
  std::vector<int64_t> devices;  // of each, in the order of ranks
  std::vector<int64_t> nodes;    // host memory, of each entry of Layout::nodes

  // Leaves so much of each device that is known, or of one of them, to what no estimate counts; a
  // byte is left at least.
  void LeaveRoom(int64_t bytes);
  void LeaveRoom(size_t device, int64_t bytes);
};

// `needs` of each rank against what its device has, in bytes; 0, or no entry: unknown, which fits.
// nullopt: all fit. Otherwise a sentence about the rank that lacks most:
// "rank 3 needs 96.1 GiB (optimizer 61.0 GiB is the largest term), device has 80.0 GiB for it", and
// how many others do not fit.
std::optional<std::string> MemoryShortage(absl::Span<const MemoryEstimate> needs,
                                          absl::Span<const int64_t> device_memory);

// What all ranks of each entry of Layout::nodes take of their node's memory; of a node with several
// entries all is said of its first one.
std::vector<HostEstimate> HostMemoryOf(const Plan& plan, absl::Span<const MemoryEstimate> needs);

// That against what the nodes have, likewise. nullopt: all fit. Otherwise the node that lacks most,
// and a sentence about it.
struct HostShortage {
  size_t node = 0;  // entry of Layout::nodes
  std::string text;
};
// Of checkpoints alone: "node-0 needs 96.0 GiB of host memory for the copy that checkpoints are
// written from and has 64.0 GiB".
std::optional<HostShortage> SnapshotShortage(const Plan& plan, absl::Span<const HostEstimate> needs,
                                             absl::Span<const int64_t> nodes);
// Of second homes, beside checkpoints: "node-0 needs 96.0 GiB of host memory for second homes of
// optimizer state, beside 8.0 GiB for checkpoints, and has 64.0 GiB".
std::optional<HostShortage> CopiesShortage(const Plan& plan, absl::Span<const HostEstimate> needs,
                                           absl::Span<const int64_t> nodes);

// Whether something is known of what the plan needs; else it fits, and nothing has to be estimated.
bool MayLack(const Plan& plan, const MemoryLimits& limits);

// What a plan needs by estimate against what its devices have, as above.
// Errors: InvalidArgument with that sentence as a violation of spec.modules. Of a plan that has
// lost ranks it names them, and the replica that is narrower where the rank stands: "without rank
// 1, rank 0 needs ...; replica 0 of module language is 1 wide there instead of 2".
absl::Status CheckDeviceMemory(const Plan& plan, absl::Span<const MemoryEstimate> needs,
                               absl::Span<const int64_t> device_memory);
// What it needs of the nodes, but for second homes that the job has not asked for by name
// (recovery.state_home auto): without room for them it trains without them.
// Errors: InvalidArgument with violations of spec.checkpoint and of spec.recovery.state_home.
absl::Status CheckHostMemory(const Plan& plan, absl::Span<const MemoryEstimate> needs,
                             absl::Span<const int64_t> nodes);
// Both. Errors: of both, at once.
absl::Status CheckMemory(const Plan& plan, absl::Span<const MemoryEstimate> needs,
                         const MemoryLimits& limits);
absl::Status CheckMemory(const Plan& plan, const MemoryLimits& limits);

}  // namespace phalanx::plan

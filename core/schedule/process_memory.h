// core/schedule/process_memory.h: what the process of a rank takes of its device at most, as the
// driver counts it: tensors by estimate (core/schedule/memory_peak.h), and by a profile what is
// beside them.
//
// Communicators are counted by their form: one takes the same whatever the number of its ranks, and
// more for each rank that messages are exchanged with. Standby communicators are those that the
// rank makes beforehand for the loss of each other one (core/plan/preparation.h). Where a device
// has no room for what is prepared, it is left out, as a rank does.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/part_sizes.h"
#include "core/plan/plan.h"
#include "core/schedule/memory_peak.h"
#include "core/schedule/profile.h"

namespace phalanx::schedule {

// Bytes. nullopt: not measured, or of a job of more than kCommunicatorsCountedMax ranks.
struct ProcessMemory {
  Rank rank;
  MemoryPeak peak;
  std::optional<int64_t> context, communicators, standby;
  // Where the profile has all of that in one figure.
  int64_t unestimated = 0;

  int64_t total() const {
    return peak.total() + context.value_or(0) + communicators.value_or(0) + standby.value_or(0) +
           unestimated;
  }
};
inline constexpr int32_t kCommunicatorsCountedMax = 1024;

// What processes take of devices beside what plans estimate.
struct BytesBeside {
  int64_t least = 0;                    // DeviceProfile::unestimated_bytes
  std::optional<ProcessBytes> process;  // what it is at least where a plan has many communicators
};
BytesBeside BesideOf(const DeviceProfile& profile);
// Of each rank of the plan.
std::vector<int64_t> BesideOfRanks(const plan::Plan& plan, const BytesBeside& beside,
                                   plan::PartSizes& sizes);

// Of the rank that takes most. `device_memory`: of each device; 0: not known, which holds anything.
ProcessMemory MostMemory(const plan::Plan& plan, const DeviceProfile& profile,
                         const plan::SampleShape& samples = {}, int64_t device_memory = 0);

// What the communicators of a plan take of the device of a rank, without the library's.
int64_t BytesOfCommunicators(const plan::Plan& plan, Rank rank, const CommunicatorsBytes& bytes);

}  // namespace phalanx::schedule

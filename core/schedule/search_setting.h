// core/schedule/search_setting.h: what one setting of one layout comes to. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/plan/activation_estimate.h"
#include "core/plan/plan.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/search.h"
#include "core/schedule/search_bound.h"

namespace phalanx::schedule {

// The job under a layout and a setting.
job::JobSpec WithSetting(job::JobSpec laid, const Setting& setting);

// The most that a rank of the plan needs by estimate, of such samples.
int64_t MemoryOf(const plan::Plan& plan, const plan::SampleShape& samples = {});

// Of a plan of the job, simulated under the profile (of a very long step beginnings of it,
// long_step.h). `spec` and `slower` are the caller's to fill.
absl::StatusOr<Proposal> Measure(plan::Plan plan, const DeviceProfile& profile, int32_t items);

// How much of a long step is simulated: what tells whether it is worth more, or what it takes. By a
// glance it may be a few percent off, where ranks wait for each other in every microbatch.
enum class Care : uint8_t { kGlance, kWhole };

struct Measured {
  std::optional<Proposal> proposal;
  double least = 0;  // seconds that the step takes at least
};
// As Measure; no proposal where the step takes more than `most` seconds, which what the busiest
// rank works at the clock that it keeps up may tell already, or a beginning of the step.
absl::StatusOr<Measured> MeasureWithin(double most, Care care, plan::Plan plan,
                                       const DeviceProfile& profile, int32_t items,
                                       KnownUpdates& updates);

// "ranks wait 12.0 ms longer (bubble 23.1 % instead of 4.0 %)": where most of what
// `slower` takes longer than `faster` goes, and how much of that all else makes up for.
std::string WhySlower(const Proposal& faster, const Proposal& slower);

}  // namespace phalanx::schedule

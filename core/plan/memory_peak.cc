#include "core/plan/memory_peak.h"

#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "core/plan/preparation.h"
#include "core/plan/samples.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

// What a rank takes to try a layout, in which it may have no work.
int64_t BytesTried(const Plan& plan, Rank rank, const SampleShape& samples) {
  if (plan.PlacesOf(rank).empty()) return 0;
  SampleShape tried = samples;
  tried.labelled_share = 1;
  tried.as_dealt = true;
  tried.microbatches = MicrobatchesTried(plan, rank);
  return EstimateMemory(plan, rank, tried).total();
}

void AddTried(const Plan& plan, const SampleShape& samples, std::vector<MemoryPeak>& peaks) {
  for (Rank rank{0}; rank.value < plan.world; ++rank.value) {
    int64_t& tried = peaks[static_cast<size_t>(rank.value)].tried;
    tried = std::max(tried, BytesTried(plan, rank, samples));
  }
}

}  // namespace

int64_t MicrobatchesTried(const Plan& plan, Rank rank) {
  const std::vector<Place> places = plan.PlacesOf(rank);
  std::set<std::pair<int32_t, int64_t>> seen;  // a module, and samples on its lane
  int64_t tried = 0;
  for (int64_t m = 0; m < plan.microbatches; ++m) {
    const MicrobatchSamples microbatch = SamplesOfMicrobatch(plan, m);
    bool differs = false;
    for (const Place& place : places) {
      const int64_t count = LaneSamples(plan, place.module, place.dp, microbatch).count;
      if (count > 0) differs |= seen.emplace(place.module, count).second;
    }
    tried += differs ? 1 : 0;
  }
  return std::max<int64_t>(1, tried);
}

std::vector<MemoryPeak> EstimatePeaks(const Plan& plan, const SampleShape& samples) {
  std::vector<MemoryPeak> peaks(static_cast<size_t>(plan.world));
  const std::vector<MemoryEstimate> steps = EstimateMemory(plan, samples);
  for (size_t rank = 0; rank < peaks.size(); ++rank) peaks[rank].step = steps[rank];
  if (plan.spec.resources.device != job::DeviceKind::kGpu) return peaks;
  if (CopiesToHost(plan)) {
    const std::vector<std::vector<int32_t>> others = RanksToTakeOver(plan);
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      int64_t state = 0;
      for (const int32_t other : others[rank])  // one of its two buffers
        state += steps[static_cast<size_t>(other)].host.copies / 2;
      peaks[rank].to_take_over = BytesToTakeOver(state);
    }
  }
  if (plan.world > kPreparedDevicesMax) return peaks;
  AddTried(plan, samples, peaks);
  for (Rank lost{0}; lost.value < plan.world; ++lost.value) {
    if (plan.PlacesOf(lost).empty()) continue;
    const absl::StatusOr<Plan> next = PlanBehindLoss(plan, lost);
    if (next.ok()) AddTried(*next, samples, peaks);
  }
  return peaks;
}

}  // namespace phalanx::plan

#include "core/plan/samples.h"

#include <algorithm>
#include <array>

#include "core/base/prng.h"
#include "core/plan/check.h"

namespace phalanx::plan {
namespace {

// What language lane `lane` takes of microbatch `microbatch`, as positions in the global batch.
UnitRange LaneMicrobatch(const Plan& plan, int64_t microbatch, int32_t lane) {
  const UnitRange run =
      EvenSplit(plan.spec.batch.global, plan.parallel(plan.spec.language).dp, lane);
  const UnitRange part = EvenSplit(run.count, plan.microbatches, microbatch);
  return {run.first + part.first, part.count};
}

// A permutation of [0, 4^half_bits) keyed by (seed, pass).
uint64_t Feistel(uint64_t seed, uint64_t pass, int half_bits, uint64_t value) {
  constexpr uint64_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (Hash64(seed, pass * kRounds + round, right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits | right;
}

// Messages of one pair of lanes of an edge: one a destination tensor rank.
void AppendPair(const Plan& plan, const Link& link, int32_t from_lane, int32_t to_lane,
                UnitRange samples, std::vector<LinkMessage>* messages) {
  const RankList sources = plan.TensorGroup(link.from_module, from_lane, link.from_stage);
  const RankList destinations = plan.TensorGroup(link.to_module, to_lane, link.to_stage);
  for (size_t slice = 0; slice < destinations.size(); ++slice) {
    messages->push_back({.from = sources[slice % sources.size()],
                         .to = destinations[slice],
                         .first = samples.first,
                         .count = samples.count,
                         .slice = static_cast<int32_t>(slice),
                         .slices = static_cast<int32_t>(destinations.size())});
  }
}

std::vector<LinkMessage> EdgeMessages(const Plan& plan, const Link& link,
                                      const MicrobatchSamples& microbatch) {
  std::vector<LinkMessage> messages;
  const int32_t sources = plan.parallel(link.from_module).dp;
  const int32_t destinations = plan.parallel(link.to_module).dp;
  // Both sides cut one list into ascending runs, so one walk over both finds all intersections.
  for (int32_t from = 0, to = 0; from < sources && to < destinations;) {
    const UnitRange source = LaneSamples(plan, link.from_module, from, microbatch);
    const UnitRange destination = LaneSamples(plan, link.to_module, to, microbatch);
    const int64_t first = std::max(source.first, destination.first);
    const int64_t end = std::min(source.end(), destination.end());
    if (first < end) AppendPair(plan, link, from, to, {first, end - first}, &messages);
    if (source.end() <= destination.end()) {
      ++from;
    } else {
      ++to;
    }
  }
  return messages;
}

std::vector<LinkMessage> StageMessages(const Plan& plan, const Link& link,
                                       const MicrobatchSamples& microbatch) {
  std::vector<LinkMessage> messages;
  const job::Parallel& parallel = plan.parallel(link.from_module);
  for (int32_t dp = 0; dp < parallel.dp; ++dp) {
    const UnitRange samples = LaneSamples(plan, link.from_module, dp, microbatch);
    if (samples.count == 0) continue;
    for (int32_t cp = 0; cp < parallel.cp; ++cp) {
      const RankList sources = plan.TensorGroup(link.from_module, dp, link.from_stage, cp);
      const RankList destinations = plan.TensorGroup(link.to_module, dp, link.to_stage, cp);
      for (size_t tp = 0; tp < sources.size(); ++tp) {
        messages.push_back({.from = sources[tp],
                            .to = destinations[tp],
                            .first = samples.first,
                            .count = samples.count});
      }
    }
  }
  return messages;
}

}  // namespace

MicrobatchSamples SamplesOfMicrobatch(const Plan& plan, int64_t microbatch) {
  MicrobatchSamples result;
  const int32_t lanes = plan.parallel(plan.spec.language).dp;
  for (int32_t lane = 0; lane < lanes; ++lane) {
    result.lane_first.push_back(static_cast<int64_t>(result.samples.size()));
    const UnitRange range = LaneMicrobatch(plan, microbatch, lane);
    for (int64_t sample = range.first; sample < range.end(); ++sample)
      result.samples.push_back(sample);
  }
  result.lane_first.push_back(static_cast<int64_t>(result.samples.size()));
  return result;
}

int64_t CountOfMicrobatch(const Plan& plan, int64_t microbatch) {
  const int64_t global = plan.spec.batch.global, lanes = plan.parallel(plan.spec.language).dp;
  const int64_t run = global / lanes, longer = global % lanes;
  return longer * EvenSplit(run + 1, plan.microbatches, microbatch).count +
         (lanes - longer) * EvenSplit(run, plan.microbatches, microbatch).count;
}

UnitRange LaneSamples(const Plan& plan, int32_t module, int32_t lane,
                      const MicrobatchSamples& microbatch) {
  if (module == plan.spec.language) {
    const int64_t first = microbatch.lane_first[static_cast<size_t>(lane)];
    return {first, microbatch.lane_first[static_cast<size_t>(lane) + 1] - first};
  }
  return EvenSplit(static_cast<int64_t>(microbatch.samples.size()), plan.parallel(module).dp, lane);
}

int64_t LaneSamplesOfStep(const Plan& plan, int32_t module, int32_t lane) {
  const int32_t lanes = plan.parallel(module).dp;
  if (module == plan.spec.language) return EvenSplit(plan.spec.batch.global, lanes, lane).count;
  // Microbatches have at most three sizes, in runs that end where a lane's larger parts end.
  const int64_t run = plan.spec.batch.global / plan.parallel(plan.spec.language).dp;
  std::array<int64_t, 4> cuts = {0, run % plan.microbatches, (run + 1) % plan.microbatches,
                                 plan.microbatches};
  std::sort(cuts.begin(), cuts.end());
  int64_t count = 0;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    const int64_t samples = CountOfMicrobatch(plan, cuts[i]);
    count += (cuts[i + 1] - cuts[i]) * EvenSplit(samples, lanes, lane).count;
  }
  return count;
}

int64_t SampleAt(uint64_t seed, int64_t data_set_size, int64_t position) {
  PHALANX_CHECK(data_set_size > 0 && position >= 0, "a position in a data set that is not empty");
  const auto size = static_cast<uint64_t>(data_set_size);
  const uint64_t pass = static_cast<uint64_t>(position) / size;
  int half_bits = 2;
  while (half_bits < 31 && uint64_t{1} << (2 * half_bits) < size) ++half_bits;
  // The permutation is of a power of four, at most max(16, 4 * size); what falls outside walks on.
  constexpr uint64_t kSampleOrder = StreamOf("sample order");
  uint64_t value = static_cast<uint64_t>(position) % size;
  do {
    value = Feistel(seed ^ kSampleOrder, pass, half_bits, value);
  } while (value >= size);
  return static_cast<int64_t>(value);
}

std::vector<LinkMessage> LinkMessages(const Plan& plan, int32_t link,
                                      const MicrobatchSamples& microbatch) {
  const Link& which = plan.links[static_cast<size_t>(link)];
  return which.edge < 0 ? StageMessages(plan, which, microbatch)
                        : EdgeMessages(plan, which, microbatch);
}

}  // namespace phalanx::plan

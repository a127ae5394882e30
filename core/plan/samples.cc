#include "core/plan/samples.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "absl/numeric/int128.h"
#include "core/base/prng.h"
#include "core/plan/check.h"

namespace phalanx::plan {
namespace {

// How many of `count` things each replica is dealt. Every replica's share is at least its quota
// rounded down, so only what is left then is dealt one by one.
std::vector<int64_t> DealBySpeed(const std::vector<int64_t>& speeds, int64_t count) {
  using Wide = absl::int128;
  Wide sum = 0;
  for (int64_t speed : speeds) sum += speed;
  std::vector<int64_t> dealt;
  int64_t rest = count;
  for (int64_t speed : speeds) {
    dealt.push_back(static_cast<int64_t>(Wide{count} * speed / sum));
    rest -= dealt.back();
  }
  for (; rest > 0; --rest) {
    size_t next = speeds.size();
    for (size_t i = 0; i < speeds.size(); ++i) {
      if (speeds[i] == 0) continue;
      // (dealt + 1) / speed, compared without dividing.
      if (next == speeds.size() ||
          Wide{dealt[i] + 1} * speeds[next] < Wide{dealt[next] + 1} * speeds[i]) {
        next = i;
      }
    }
    ++dealt[next];
  }
  return dealt;
}

UnitRange RunOf(const std::vector<int64_t>& starts, int32_t lane) {
  const auto i = static_cast<size_t>(lane);
  return {starts[i], starts[i + 1] - starts[i]};
}

// What one replica is dealt of `count` things.
UnitRange LaneRun(const ModulePlan& module, int64_t count, int32_t lane) {
  if (module.speeds.empty()) return EvenSplit(count, module.replicas.replicas(), lane);
  return RunOf(LaneStarts(module, count), lane);
}

const ModulePlan& ModuleOf(const Plan& plan, int32_t module) {
  return plan.modules[static_cast<size_t>(module)];
}

// Lengths of the language replicas' runs, each with the number of replicas that have it.
std::map<int64_t, int64_t> RunLengths(const Plan& plan) {
  std::map<int64_t, int64_t> lanes;
  for (size_t lane = 0; lane + 1 < plan.sample_runs.size(); ++lane) {
    ++lanes[plan.sample_runs[lane + 1] - plan.sample_runs[lane]];
  }
  return lanes;
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

std::vector<int64_t> MicrobatchStarts(const Plan& plan, int32_t module,
                                      const MicrobatchSamples& microbatch) {
  if (module == plan.spec.language) return microbatch.lane_first;
  return LaneStarts(ModuleOf(plan, module), static_cast<int64_t>(microbatch.samples.size()));
}

// Messages of one pair of lanes: where both ends cut rows alike, between equal slices.
void AppendPair(const RankList& sources, const RankList& destinations, UnitRange samples,
                std::vector<LinkMessage>* messages) {
  const size_t from_slices = sources.size(), to_slices = destinations.size();
  for (size_t from = 0; from < from_slices; ++from) {
    for (size_t to = 0; to < to_slices; ++to) {
      if (from_slices == to_slices && from != to) continue;
      messages->push_back({.from = sources[from],
                           .to = destinations[to],
                           .first = samples.first,
                           .count = samples.count,
                           .from_slice = static_cast<int32_t>(from),
                           .from_slices = static_cast<int32_t>(from_slices),
                           .to_slice = static_cast<int32_t>(to),
                           .to_slices = static_cast<int32_t>(to_slices),
                           .flags = from == to % from_slices});
    }
  }
}

std::vector<LinkMessage> EdgeMessages(const Plan& plan, const Link& link,
                                      const MicrobatchSamples& microbatch) {
  std::vector<LinkMessage> messages;
  const std::vector<int64_t> from_starts = MicrobatchStarts(plan, link.from.module, microbatch);
  const std::vector<int64_t> to_starts = MicrobatchStarts(plan, link.to.module, microbatch);
  const auto sources = static_cast<int32_t>(from_starts.size()) - 1;
  const auto destinations = static_cast<int32_t>(to_starts.size()) - 1;
  // Both sides cut one list into ascending runs, so one walk over both finds all intersections.
  for (int32_t from = 0, to = 0; from < sources && to < destinations;) {
    const UnitRange source = RunOf(from_starts, from), destination = RunOf(to_starts, to);
    const UnitRange both = Intersection(source, destination);
    if (both.count > 0) {
      AppendPair(plan.TensorGroup(link.from.module, from, link.from.stage),
                 plan.TensorGroup(link.to.module, to, link.to.stage), both, &messages);
    }
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
  const ReplicaTable& replicas = plan.replicas(link.from.module);
  const bool sliced = plan.IsSliced(link);
  const std::vector<int64_t> starts = MicrobatchStarts(plan, link.from.module, microbatch);
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    const UnitRange samples = RunOf(starts, dp);
    if (samples.count == 0) continue;
    for (int32_t cp = 0; cp < replicas.cp(); ++cp) {
      const RankList sources = replicas.Ranks(dp, link.from.stage, cp);
      const RankList destinations = replicas.Ranks(dp, link.to.stage, cp);
      if (sliced || sources.size() != destinations.size()) {
        AppendPair(sources, destinations, samples, &messages);
        continue;
      }
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

std::vector<int64_t> LaneStarts(const ModulePlan& module, int64_t count) {
  const int32_t lanes = module.replicas.replicas();
  std::vector<int64_t> starts = {0};
  starts.reserve(static_cast<size_t>(lanes) + 1);
  if (module.speeds.empty()) {
    for (int32_t lane = 0; lane < lanes; ++lane) {
      starts.push_back(EvenSplit(count, lanes, lane).end());
    }
    return starts;
  }
  for (int64_t dealt : DealBySpeed(module.speeds, count)) starts.push_back(starts.back() + dealt);
  return starts;
}

MicrobatchSamples SamplesOfMicrobatch(const Plan& plan, int64_t microbatch) {
  MicrobatchSamples result;
  const auto lanes = static_cast<int32_t>(plan.sample_runs.size()) - 1;
  for (int32_t lane = 0; lane < lanes; ++lane) {
    result.lane_first.push_back(static_cast<int64_t>(result.samples.size()));
    const UnitRange run = RunOf(plan.sample_runs, lane);
    const UnitRange part = EvenSplit(run.count, plan.microbatches, microbatch);
    for (int64_t i = part.first; i < part.end(); ++i) result.samples.push_back(run.first + i);
  }
  result.lane_first.push_back(static_cast<int64_t>(result.samples.size()));
  return result;
}

int64_t CountOfMicrobatch(const Plan& plan, int64_t microbatch) {
  int64_t count = 0;
  for (const auto& [length, lanes] : RunLengths(plan)) {
    count += lanes * EvenSplit(length, plan.microbatches, microbatch).count;
  }
  return count;
}

MicrobatchSamples DealMicrobatch(const Plan& plan, int64_t count) {
  MicrobatchSamples result{.lane_first = LaneStarts(ModuleOf(plan, plan.spec.language), count)};
  result.samples.resize(static_cast<size_t>(count));
  std::iota(result.samples.begin(), result.samples.end(), 0);
  return result;
}

int64_t SamplesAtOnce(const Plan& plan) {
  const ModulePlan& language = ModuleOf(plan, plan.spec.language);
  const auto fits = [&](int64_t count) {
    const std::vector<int64_t> starts = LaneStarts(language, count);
    for (size_t lane = 0; lane + 1 < starts.size(); ++lane) {
      if (starts[lane + 1] - starts[lane] > plan.spec.batch.micro) return false;
    }
    return true;
  };
  // No replica gets fewer when there are more to deal.
  int64_t most = 1, too_many = plan.spec.batch.micro * language.replicas.present_replicas() + 1;
  while (too_many - most > 1) {
    const int64_t middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most;
}

UnitRange LaneSamples(const Plan& plan, int32_t module, int32_t lane,
                      const MicrobatchSamples& microbatch) {
  if (module == plan.spec.language) return RunOf(microbatch.lane_first, lane);
  return LaneRun(ModuleOf(plan, module), static_cast<int64_t>(microbatch.samples.size()), lane);
}

std::vector<int64_t> LaneSamplesOfStep(const Plan& plan, int32_t module) {
  const ModulePlan& layout = ModuleOf(plan, module);
  std::vector<int64_t> samples(static_cast<size_t>(layout.replicas.replicas()));
  const auto add = [&](const std::vector<int64_t>& starts, int64_t times) {
    for (size_t lane = 0; lane < samples.size(); ++lane) {
      samples[lane] += times * (starts[lane + 1] - starts[lane]);
    }
  };
  if (module == plan.spec.language) {
    add(plan.sample_runs, 1);
    return samples;
  }
  // A run of the language model gives its first microbatches one sample more: between the places
  // where such parts end all microbatches have one size.
  std::set<int64_t> cuts = {0, plan.microbatches};
  for (const auto& [length, lanes] : RunLengths(plan)) cuts.insert(length % plan.microbatches);
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    add(LaneStarts(layout, CountOfMicrobatch(plan, *cut)), *std::next(cut) - *cut);
  }
  return samples;
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

UnitRange RowsOfMessage(const LinkMessage& message, int64_t rows) {
  return Intersection(SliceOf(rows, message.from_slices, message.from_slice),
                      SliceOf(rows, message.to_slices, message.to_slice));
}

std::vector<LinkMessage> LinkMessages(const Plan& plan, int32_t link,
                                      const MicrobatchSamples& microbatch) {
  const Link& which = plan.links[static_cast<size_t>(link)];
  return which.edge < 0 ? StageMessages(plan, which, microbatch)
                        : EdgeMessages(plan, which, microbatch);
}

}  // namespace phalanx::plan

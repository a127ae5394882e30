#include "core/schedule/memory_peak.h"

#include <map>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "core/plan/activation_estimate.h"
#include "core/plan/activations.h"
#include "core/plan/memory_fit.h"
#include "core/plan/preparation.h"
#include "core/plan/samples.h"
#include "core/plan/shares.h"
#include "core/schedule/admission.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {
namespace {

using plan::Plan;
using plan::SampleShape;

// One part of a rank, as far as memory depends on it.
struct WalkedPart {
  plan::PartActivations bytes;
  bool back = false;     // it has a backward pass
  bool weights = false;  // and one of its weights, apart from that of its inputs
};
using WalkedParts = std::map<std::pair<int32_t, int32_t>, WalkedPart>;  // by module and chunk

WalkedParts WalkedPartsOf(const Plan& plan, Rank rank, const SampleShape& samples) {
  WalkedParts parts;
  for (const plan::Place& place : plan.PlacesOf(rank)) {
    if (!job::TraitsOf(plan.module_spec(place.module).architecture).known()) continue;
    const plan::ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
    for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      const plan::Trains trains = layout.TrainsOf(place.pp, chunk);
      parts[{place.module, chunk}] = {
          .bytes = plan::ActivationsOfPart(plan, place, chunk, samples),
          .back = trains.any(),
          .weights = trains.weights && !plan::BackwardIsOne(plan, {place.module, place.pp, chunk})};
    }
  }
  return parts;
}

// Goes through passes in their order.
class Walk {
 public:
  void Pass(Op op, const WalkedPart& part) {
    const plan::PartActivations& bytes = part.bytes;
    if (op == Op::kForward) {
      now_ += bytes.kept + bytes.head;
      See(part.back ? 0 : bytes.once);
      if (!part.back) now_ -= bytes.kept + bytes.head;
      return;
    }
    const bool inputs = op == Op::kBackwardInput;
    if (!inputs && !part.weights) return;  // the input pass did it
    See(bytes.once);
    if (inputs != bytes.head_waits || (inputs && !part.weights)) now_ -= bytes.head;
    if (inputs != part.weights) now_ -= bytes.kept;
  }
  int64_t most() const { return most_; }

 private:
  void See(int64_t once) { most_ = std::max(most_, now_ + once); }

  int64_t now_ = 0, most_ = 0;
};

// Of a step, or of those microbatches. As the program goes where `walked`.
plan::MemoryEstimate EstimateOf(const Plan& plan, Rank rank, plan::MemoryEstimate estimate,
                                const SampleShape& samples, bool walked,
                                const std::optional<std::vector<int64_t>>& microbatches) {
  if (walked) estimate.activations = ActivationPeak(plan, rank, samples, microbatches);
  return estimate;
}

bool IsWalked(const Plan& plan) {
  return int64_t{plan.world} * plan.microbatches <= kPassesMax / std::max(1, plan.stages);
}

// What a rank takes to try a layout, in which it may have no work.
int64_t BytesTried(const Plan& plan, Rank rank, const SampleShape& samples) {
  if (plan.PlacesOf(rank).empty()) return 0;
  const std::vector<int64_t> microbatches = MicrobatchesTried(plan, rank);
  SampleShape tried = samples;
  tried.labelled_share = 1;
  tried.as_dealt = true;
  tried.microbatches = static_cast<int64_t>(microbatches.size());
  return EstimateOf(plan, rank, plan::EstimateMemory(plan, rank, tried), tried, IsWalked(plan),
                    microbatches)
      .total();
}

// The plan itself, and those behind the loss of each of its ranks.
std::vector<Plan> PlansTried(const Plan& plan) {
  std::vector<Plan> plans;
  if (plan.world > plan::kPreparedDevicesMax) return plans;
  plans.push_back(plan);
  for (LeftBehind& left : LeftBehindLosses(plan, {})) plans.push_back(std::move(left.plan));
  return plans;
}

bool OnGpus(const Plan& plan) { return plan.spec.resources.device == job::DeviceKind::kGpu; }

// `step` as the estimate has it; `state`: bytes of masters and moments that it would take over.
MemoryPeak PeakOf(const Plan& plan, Rank rank, const plan::MemoryEstimate& step, int64_t state,
                  const std::vector<Plan>& tried, const SampleShape& samples) {
  MemoryPeak peak = {
      .step = EstimateOf(plan, rank, step, samples, OnGpus(plan) && IsWalked(plan), {}),
      .to_take_over = plan::BytesToTakeOver(state)};
  for (const Plan& one : tried) peak.each_tried.push_back(BytesTried(one, rank, samples));
  return peak;
}

// One of the two buffers in which a rank's state is copied.
int64_t StateCopied(const plan::MemoryEstimate& estimate) { return estimate.host.copies / 2; }

}  // namespace

std::vector<LeftBehind> LeftBehindLosses(const Plan& plan,
                                         absl::Span<const int64_t> device_memory) {
  std::vector<LeftBehind> all;
  if (plan.world > plan::kPreparedDevicesMax) return all;
  const plan::MemoryLimits limits{.devices = {device_memory.begin(), device_memory.end()}};
  for (Rank lost{0}; lost.value < plan.world; ++lost.value) {
    if (plan.PlacesOf(lost).empty()) continue;
    absl::StatusOr<Plan> next = AdmitAfter(plan, {.lost = {lost}, .spares = false}, limits);
    if (next.ok()) all.push_back({lost, *std::move(next)});
  }
  return all;
}

int64_t ActivationPeak(const Plan& plan, Rank rank, const SampleShape& samples,
                       const std::optional<std::vector<int64_t>>& microbatches) {
  const absl::StatusOr<Program> program = BuildStepOf(plan, rank);
  if (!program.ok()) return plan::EstimateMemory(plan, rank, samples).activations;
  const WalkedParts parts = WalkedPartsOf(plan, rank, samples);
  int64_t throughout = 0;
  for (const auto& [key, part] : parts) throughout += part.bytes.messages + part.bytes.items;
  Walk walk;
  for (const Instruction& instruction : *program) {
    if (!IsPass(instruction.op)) continue;
    const auto part = parts.find({instruction.module, instruction.chunk});
    const bool runs =
        !microbatches.has_value() || std::binary_search(microbatches->begin(), microbatches->end(),
                                                        int64_t{instruction.microbatch});
    if (part != parts.end() && runs) walk.Pass(instruction.op, part->second);
  }
  return walk.most() + throughout;
}

std::vector<int64_t> MicrobatchesTried(const Plan& plan, Rank rank) {
  const std::vector<plan::Place> places = plan.PlacesOf(rank);
  std::set<std::pair<int32_t, int64_t>> seen;  // a module, and samples on its lane
  std::vector<int64_t> tried;
  for (int64_t m = 0; m < plan.microbatches; ++m) {
    const plan::MicrobatchSamples microbatch = plan::SamplesOfMicrobatch(plan, m);
    bool differs = false;
    for (const plan::Place& place : places) {
      const int64_t count = plan::LaneSamples(plan, place.module, place.dp, microbatch).count;
      if (count > 0) differs |= seen.emplace(place.module, count).second;
    }
    if (differs) tried.push_back(m);
  }
  return tried;
}

std::vector<MemoryPeak> EstimatePeaks(const Plan& plan, const SampleShape& samples) {
  const std::vector<plan::MemoryEstimate> steps = plan::EstimateMemory(plan, samples);
  std::vector<std::vector<int32_t>> others(steps.size());
  if (OnGpus(plan) && plan::CopiesToHost(plan)) others = plan::RanksToTakeOver(plan);
  const std::vector<Plan> tried = OnGpus(plan) ? PlansTried(plan) : std::vector<Plan>();
  std::vector<MemoryPeak> peaks;
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    int64_t state = 0;
    for (const int32_t other : others[rank])
      state += StateCopied(steps[static_cast<size_t>(other)]);
    peaks.push_back(
        PeakOf(plan, Rank{static_cast<int32_t>(rank)}, steps[rank], state, tried, samples));
  }
  return peaks;
}

MemoryPeak EstimatePeak(const Plan& plan, Rank rank, const SampleShape& samples) {
  int64_t state = 0;
  if (OnGpus(plan) && plan::CopiesToHost(plan)) {
    for (const int32_t other : plan::RanksToTakeOver(plan, rank))
      state += StateCopied(plan::EstimateMemory(plan, Rank{other}, samples));
  }
  return PeakOf(plan, rank, plan::EstimateMemory(plan, rank, samples), state,
                OnGpus(plan) ? PlansTried(plan) : std::vector<Plan>(), samples);
}

}  // namespace phalanx::schedule

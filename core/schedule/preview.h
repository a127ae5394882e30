// core/schedule/preview.h: what the plan of a job comes to, before anything runs. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/memory_fit.h"
#include "core/plan/moves.h"
#include "core/plan/plan.h"
#include "core/schedule/process_memory.h"
#include "core/schedule/profile.h"
#include "core/schedule/search.h"
#include "core/schedule/simulator.h"

namespace phalanx::schedule {

// A step of a plan under a profile, as a search times it (search.h).
struct Prediction {
  std::string device_kind;  // the profile's name
  int32_t items = 1;        // images or sounds of a sample
  double step = 0;          // seconds
  double bubble = 0;        // 1 - busy / (ranks x time of all passes)
  double clock_mhz = 0;     // of the rank that keeps up the lowest; 0: not known
  // Of the rank that takes most of its device. Of these items, and of batch.labelled_share of the
  // rows: what a job is admitted with is of the most that may come.
  ProcessMemory memory;
  StepParts parts;
};

struct Preview {
  plan::Plan plan;
  Simulation simulation;  // of the plan, under the costs from shapes
  // Of a plan without some places, against the healthy one.
  struct Loss {
    plan::Moves moves;
    // Of the simulated steps, under the costs from shapes; the caller's to replace by that of
    // predictions.
    double step_ratio = 1;
  };
  std::optional<Loss> loss;
  std::optional<Prediction> prediction;  // the caller's to add
};

// Plans a job as AdmitJob does, or what is left of it without the places `lost`
// (AdmitWithout). Errors: those of both; InvalidArgument where what is left does not fit.
absl::StatusOr<Preview> PreviewJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                   const plan::MemoryLimits& limits, absl::Span<const Rank> lost,
                                   const BytesBeside& beside = {});

// A plan that a job has already, such as what was left of it in some epoch. Errors: those of
// plan::Expand and of SimulatePlan.
absl::StatusOr<Preview> PreviewLayout(const job::JobSpec& spec, plan::Layout layout);

// `device_memory`: bytes of each device, 0: not known; what a rank takes of it
// where there is room is left out where there is none. Errors: InvalidArgument with the modules of
// unknown shape.
absl::StatusOr<Prediction> PredictStep(const plan::Plan& plan, const DeviceProfile& profile,
                                       int32_t items, int64_t device_memory = 0);

}  // namespace phalanx::schedule

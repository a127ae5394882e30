// core/schedule/search_look.h: what one layout of a search takes as written: its best setting of
// those that fit. What a search does with it: search.h.
//
// Pure. Not thread-safe: it keeps what it has worked out. Several may look at layouts at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/job/job_spec.h"
#include "core/plan/memory_fit.h"
#include "core/plan/part_sizes.h"
#include "core/plan/plan.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/search.h"
#include "core/schedule/search_bound.h"
#include "core/schedule/search_plans.h"
#include "core/schedule/search_setting.h"
#include "core/schedule/search_space.h"

namespace phalanx::schedule {

inline constexpr double kAnyStep = std::numeric_limits<double>::infinity();
// A bound is a sum in another order than the step's.
inline constexpr double kRounding = 1 - 1e-9;

// A glance at a step takes it to be longer than it is by no more than so, in nearly all cases.
inline constexpr double kGlanceShort = 0.97;

// A layout under a setting.
struct Found {
  Proposal proposal;
  size_t index = 0;  // of the layout
  auto Key() const { return std::make_tuple(proposal.step, proposal.memory, index); }
};

// What a look at a layout has come to: `found`, `slow`, `too_large`, or that no job can have it.
struct Looked {
  std::optional<Found> found;
  // Where second homes of `found` do not fit as mirrors, the best setting under which they do:
  // admission may find the one faster, or the other.
  std::optional<Found> mirrored;
  // Of what takes more than was of interest, the least seconds that something of it takes at least.
  double slow = kAnyStep;
  std::optional<double> too_large;  // nothing of it fits, and it needs at least so many bytes
  int64_t simulated = 0;            // settings
  absl::Status unsound, unplanned;  // why it could not be submitted, and be planned
};

class LayoutLook {
 public:
  // All outlive it.
  LayoutLook(const job::JobSpec& spec, const SearchSpace& space, const SearchOptions& options,
             const plan::Cluster& cluster);

  // Seconds that no step of the layout is below.
  double BoundOf(const SearchLayout& layout);
  // What takes more than `threshold` seconds is of no interest. The same for everybody who asks,
  // whatever has been looked at before. `go_on` is asked before each plan. Errors: what it says.
  absl::StatusOr<Looked> Look(const SearchLayout& layout, size_t index, double threshold,
                              absl::FunctionRef<absl::Status()> go_on);
  // What it takes as it would be admitted to devices of that memory. Nothing where that is more
  // than `most` seconds.
  absl::StatusOr<std::optional<Found>> Admit(const Found& written, const plan::MemoryLimits& limits,
                                             double most);

 private:
  using Way = std::pair<double, Setting>;  // with its bound

  void CountParameters();
  // Bytes that a rank needs on average whatever the setting.
  double MemoryBoundOf(const SearchLayout& layout) const;
  // Ways to compute again, those that the job allows.
  std::vector<std::pair<job::Recompute, job::Recompute>> Recomputations() const;
  // Ways to compute again under a schedule and micro batch, the one that adds least first.
  std::vector<Way> WaysOf(const SearchLayout& layout, Setting setting);
  // Schedules and micro batches, the least bound first.
  std::vector<Way> SettingsOf(const SearchLayout& layout);
  // What the plan takes. Nothing where it takes more than `most` for sure, which `slow_` keeps.
  absl::StatusOr<std::optional<Found>> FoundOf(plan::Plan plan, size_t index, Care care,
                                               double most);
  // Keeps the best of what fits.
  absl::Status LookUnder(const std::vector<Way>& settings, const SearchLayout& layout, size_t index,
                         absl::FunctionRef<absl::Status()> go_on);
  // Of one schedule and micro batch the recomputation that adds least of those that fit. Nothing
  // where that is no better than what is found already.
  absl::StatusOr<std::optional<Found>> BestWay(const SearchLayout& layout, const Setting& setting,
                                               size_t index,
                                               absl::FunctionRef<absl::Status()> go_on);
  // A schedule that is named may cut a step into so many groups.
  bool HasMicrobatches(const SearchLayout& layout, const job::Schedule& schedule,
                       int64_t micro) const;
  // Whether the job could be submitted under the layout, with the fewest microbatches.
  bool IsSound(const SearchLayout& layout, const job::JobSpec& laid);
  // A step that is longer is not among the best, nor the layout's.
  double MostOfUse() const;
  // Whether nothing of that bound can be better than what there is; keeps it in mind.
  bool TooSlow(double bound);

  const job::JobSpec& spec_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  const plan::Cluster& cluster_;
  PoweredBounds bounds_;
  std::vector<double> parameters_;  // of each module
  SearchPlans plans_;
  plan::PartSizes sizes_;  // of layouts that are admitted
  KnownUpdates updates_;
  // Of the layout that is looked at: what is of interest, the least of what is known of settings
  // that were too slow, what has come of it so far, and whether it could be submitted, which nobody
  // asks before some setting fits.
  double threshold_ = kAnyStep, slow_ = kAnyStep;
  Looked looked_;
  std::optional<bool> is_sound_;
};

}  // namespace phalanx::schedule

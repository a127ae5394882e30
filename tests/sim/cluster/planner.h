// tests/sim/cluster/planner.h: the jobs of the simulation, and the real planner with a memory,
// since the same few jobs are planned over and over.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/events.h"
#include "core/job/job_spec.h"
#include "core/plan/plan.h"
#include "tests/sim/cluster/transfers.h"

namespace phalanx::sim {

// What a rank keeps of one primary's shares of a part.
struct HomeSpec {
  plan::PartId part;
  int32_t primary = 0;  // the rank itself, or one that it mirrors
};

// A plan as far as ranks of the simulation act on it.
struct JobPlan {
  plan::Plan plan;
  std::vector<int32_t> ranks;  // that have work
  int32_t reporter = 0;
  std::map<int32_t, std::vector<HomeSpec>> homes;  // by rank
  std::map<int32_t, Holdings> holdings;            // by rank: of all its homes
  std::map<int32_t, Holdings> primaries;           // by rank: of those whose primary it is
  bool copies_to_host = false;  // ranks keep copies of what they are the primaries of
  std::string wrong;  // with its homes: some element has none, or one that is lost; else empty
};
using JobPlanPtr = std::shared_ptr<const JobPlan>;

class Planner {
 public:
  Planner();

  // Job documents that the simulation knows, with places for name and steps; those of jobs that may
  // be lent devices several times. A user takes one of these at random.
  const std::vector<size_t>& drawn() const { return drawn_; }
  // The first ones, so many, are those that there were before copies in host memory.
  static constexpr size_t kWithoutCopies = 12;
  coordinator::JobRequestPtr MakeRequest(size_t document, const std::string& name, int64_t steps);
  // One of a decoder alone: what the job file says of its `parallel`, and `more` sections of
  // `spec`.
  static coordinator::JobRequestPtr MakeRequest(absl::string_view parallel, absl::string_view more,
                                                const std::string& name, int64_t steps);

  absl::StatusOr<coordinator::PlanSummary> Plan(const coordinator::ComputePlan& order);
  JobPlanPtr Expand(const std::string& text, const plan::Layout& layout);

 private:
  static constexpr size_t kRememberedMax = 4096;

  std::vector<std::string> documents_;
  std::vector<size_t> drawn_;  // places in documents_
  std::map<std::string, absl::StatusOr<coordinator::PlanSummary>> plans_;
  std::map<std::string, job::JobSpec> specs_;
  std::map<std::string, JobPlanPtr> expanded_;
};

}  // namespace phalanx::sim

// tests/sim/cluster/planner.h: the jobs of the simulation, and the real planner with a memory, since
// the same few jobs are planned over and over.
//
// Not thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/events.h"
#include "core/job/job_spec.h"
#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/state_table.h"

namespace phalanx::sim {

// Elements of one ruler of one part.
struct Piece {
  plan::PartId part;
  int32_t bucket = 0;
  plan::UnitFamily family;
  plan::UnitRange elements;
};

// What a rank keeps of one primary's shares of a part.
struct HomeSpec {
  plan::PartId part;
  int32_t primary = 0;  // the rank itself, or one that it mirrors
  int64_t elements = 0;
};

// A plan as far as ranks of the simulation act on it.
struct JobPlan {
  plan::Plan plan;
  std::vector<int32_t> ranks;  // that have work
  int32_t reporter = 0;
  std::map<int32_t, std::vector<HomeSpec>> homes;  // by rank
  // Of each part its table, for transfers.
  std::map<plan::PartId, plan::StateTable> tables;
};
using JobPlanPtr = std::shared_ptr<const JobPlan>;

// Who gives state to whom so that all come from one layout to another.
struct TransferPlan {
  JobPlanPtr before, after;
  absl::Status status;  // not OK: nobody holds something
  std::set<std::pair<int32_t, int32_t>> messages;  // from, to
  int64_t elements = 0;                            // of all
};

class Planner {
 public:
  Planner();

  // Job documents that the simulation knows, with places for name and steps.
  size_t documents() const { return documents_.size(); }
  coordinator::JobRequestPtr MakeRequest(size_t document, const std::string& name, int64_t steps);

  absl::StatusOr<coordinator::PlanSummary> Plan(const coordinator::ComputePlan& order);
  JobPlanPtr Expand(const std::string& text, const plan::Layout& layout);
  // What ranks of `after` need and ranks of both hold. True until the next call of anything here.
  const TransferPlan& TransfersOf(const JobPlanPtr& before, const JobPlanPtr& after);

 private:
  static constexpr size_t kRememberedMax = 4096;

  std::vector<std::string> documents_;
  std::map<std::string, absl::StatusOr<coordinator::PlanSummary>> plans_;
  std::map<std::string, job::JobSpec> specs_;
  std::map<std::string, JobPlanPtr> expanded_;
  std::map<std::pair<const JobPlan*, const JobPlan*>, TransferPlan> transfers_;
};

}  // namespace phalanx::sim

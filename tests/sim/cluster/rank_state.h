// tests/sim/cluster/rank_state.h: what a rank process has learned, with step numbers and hashes
// instead of tensors (worker/train/training_state.h).
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/machine/events.h"
#include "coordinator/machine/records.h"
#include "tests/sim/cluster/planner.h"
#include "tests/sim/cluster/transfers.h"

namespace phalanx::sim {

// Counts of `before` with the decision counted in.
coordinator::EpochStart After(const coordinator::EpochStart& before,
                              const coordinator::StepDecision& decision);

struct RankState {
  // Some shares that this rank keeps, as the layout gives them.
  struct Home {
    HomeSpec spec;
    int64_t applied = 0;
    uint64_t bits = 0;  // BitsAfter each step that was applied
  };

  int32_t rank = 0;
  Epoch epoch;              // the last one that began with it
  JobPlanPtr layout;        // nullptr: it lies between layouts, or holds nothing
  std::vector<Home> homes;  // of the layout
  Holdings loose;           // what it holds without a layout, of decided.step and `bits`
  JobPlanPtr named_as;      // on whose rulers that is
  uint64_t bits = 0;
  coordinator::EpochStart decided;  // the last step that this rank knows to be decided
  int64_t reduced = 0;              // the gradients that it holds are the reduced ones of this step
  int64_t told = 0;

  // Initial values, which are a pure function of the job.
  static RankState Initial(int32_t rank, JobPlanPtr layout);

  bool HoldsState() const { return !homes.empty() || !loose.empty(); }
  bool AllApplied(int64_t step) const;
  // Empty, or why it cannot go on from there.
  std::string CheckStart(const coordinator::EpochStart& start) const;
  // Applies the step where that is still to be done. Returns what is wrong with it.
  // Whether its state is of that step, or to be.
  bool MayGoOn(const coordinator::EpochStart& start) const;
  std::string GoOn(const coordinator::EpochStart& start);
  // Empty, or what is wrong with applying the step to that home.
  std::string Apply(size_t home, const coordinator::StepDecision& decision);
  void Leave();
  // From now on what it holds without a layout is on the rulers of this one.
  void NameAs(const JobPlanPtr& plan);
  // All that the layout needs is there.
  void Enter(JobPlanPtr layout);

  coordinator::RankQuiet Standing(bool context_ok) const;
};

}  // namespace phalanx::sim

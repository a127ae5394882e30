// Reductions stand where they would stand if no replica had lost a rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/plan/loss.h"
#include "core/schedule/builder.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/program.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::Layout;

// Fourteen samples in microbatches of two: four microbatches of seven or of eight samples, so that
// a replica which takes one more changes nothing.
std::vector<NamedPlan> PlansOfEvenSamples() {
  const job::Architecture language = support::Llama({.layers = 12});
  const Layout deep = {.tp = 4, .dp = 2, .pp = 2};
  Layout beside = deep;
  beside.offset = 0;
  return {{"language", PlanOf(AJob().Module("language", language, deep).Batch(14, 2))},
          {"tied head",
           PlanOf(AJob()
                      .Module("language", support::Llama({.layers = 12, .tied_head = true}), deep)
                      .Batch(14, 2))},
          {"encoder on its ranks",
           PlanOf(AJob()
                      .Module("vision", support::ClipVision({.layers = 12}), {.tp = 2, .dp = 8})
                      .Module("language", language, beside)
                      .Edge("vision", "language", {.projector = 32})
                      .Batch(14, 2))},
          {"encoder elsewhere", PlanOf(AJob()
                                           .Module("vision", support::ClipVision(), {.dp = 2})
                                           .Module("language", language, deep)
                                           .Edge("vision", "language", {.projector = 32})
                                           .Batch(14, 2))}};
}

// Of one rank of a stage, of one in each stage, and of others.
std::vector<plan::RankList> LossesTried(const plan::Plan& healthy) {
  const plan::ReplicaTable& replicas = healthy.replicas(healthy.spec.language);
  const Rank first = replicas.At(1, 0, 0, 2), last = replicas.At(1, 1, 0, 0);
  return {{first}, {last}, {std::min(first, last), std::max(first, last)}};
}

// How many backward passes of its rank stand behind each kReduce of a program.
std::vector<int64_t> BackwardsBehindReductions(const Program& program) {
  std::vector<int64_t> behind;
  for (auto at = program.begin(); at != program.end(); ++at) {
    if (at->op != Op::kReduce) continue;
    behind.push_back(std::count_if(at, program.end(), [](const Instruction& instruction) {
      return instruction.op == Op::kBackwardInput || instruction.op == Op::kBackwardWeight;
    }));
  }
  return behind;
}

// Whoever is left runs the very program that it ran before, tickets included, under equal costs: so
// a part is reduced behind the same pass, and beside the same, by messages as by a collective.
TEST(ReductionPlacesTest, LayoutOfSeveralWidths_ReducesAsEarlyAsThatOfOne) {
  int64_t programs = 0, under_backwards = 0;
  for (const NamedPlan& job : PlansOfEvenSamples()) {
    for (const NamedPlan& healthy : UnderEverySchedule(job)) {
      SCOPED_TRACE(healthy.name);
      const CostModel costs =
          EqualCosts(healthy.plan, {.forward = 1, .backward_input = 1, .backward_weight = 1});
      const auto before = BuildStepWithCosts(healthy.plan, costs);
      ASSERT_TRUE(before.ok()) << before.status();
      for (const plan::RankList& lost : LossesTried(healthy.plan)) {
        const auto narrowed = plan::PlanWithout(healthy.plan, lost);
        ASSERT_TRUE(narrowed.ok()) << narrowed.status();
        const plan::ReplicaTable& replicas = narrowed->replicas(narrowed->spec.language);
        ASSERT_FALSE(replicas.EqualWidths(0) && replicas.EqualWidths(1));
        ASSERT_EQ(narrowed->microbatches, healthy.plan.microbatches);
        const auto after = BuildStepWithCosts(*narrowed, costs);
        ASSERT_TRUE(after.ok()) << after.status();
        for (int32_t rank = 0; rank < narrowed->world; ++rank) {
          if (narrowed->PlacesOf(Rank{rank}).empty()) continue;
          SCOPED_TRACE(rank);
          const Program& program = (*after)[static_cast<size_t>(rank)];
          EXPECT_EQ(program, (*before)[static_cast<size_t>(rank)]);
          ++programs;
          for (const int64_t behind : BackwardsBehindReductions(program))
            under_backwards += behind > 0 ? 1 : 0;
        }
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(programs, 500);
  EXPECT_GT(under_backwards, 500) << "no reduction runs under a backward pass";
}

// By the costs of the shapes, of which those of a narrowed stage are larger, passes may come in
// another order; in the schedules that fix it they do not, and so neither do reductions.
TEST(ReductionPlacesTest, LayoutOfSeveralWidths_HasAsManyBackwardsBehindItsReductions) {
  for (const NamedPlan& job : PlansOfEvenSamples()) {
    for (const NamedPlan& healthy : UnderEverySchedule(job)) {
      const job::ScheduleName name = healthy.plan.spec.schedule.name;
      if (name != job::ScheduleName::k1F1B && name != job::ScheduleName::kInterleaved) continue;
      SCOPED_TRACE(healthy.name);
      const std::vector<Program> before = Programs(healthy.plan);
      for (const plan::RankList& lost : LossesTried(healthy.plan)) {
        const auto narrowed = plan::PlanWithout(healthy.plan, lost);
        ASSERT_TRUE(narrowed.ok()) << narrowed.status();
        const std::vector<Program> after = Programs(*narrowed);
        for (int32_t rank = 0; rank < narrowed->world; ++rank) {
          if (narrowed->PlacesOf(Rank{rank}).empty()) continue;
          EXPECT_EQ(BackwardsBehindReductions(after[static_cast<size_t>(rank)]),
                    BackwardsBehindReductions(before[static_cast<size_t>(rank)]))
              << "rank " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace phalanx::schedule

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#include "core/base/prng.h"
#include "core/plan/activations.h"
#include "core/schedule/builder.h"
#include "core/schedule/checker.h"
#include "core/schedule/execution.h"
#include "core/schedule/order_rules.h"
#include "core/schedule/program.h"
#include "core/schedule/simulator.h"
#include "core/schedule/timeline.h"
#include "core/schedule/wiring.h"
#include "tests/support/layouts.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

constexpr uint64_t kGraphSeed = 20240817;

// PHALANX_RANDOM_GRAPHS is the number of graphs of a one-time run.
uint64_t GraphCount(uint64_t usual = 300) {
  const char* count = std::getenv("PHALANX_RANDOM_GRAPHS");
  if (count != nullptr) return std::strtoull(count, nullptr, 10);
  return kSanitized ? std::min<uint64_t>(usual, 100) : usual;
}

TEST(RandomGraphTest, BuildStep_AnyGraph_PassesTheChecker) {
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    Prng prng(Hash64(kGraphSeed, 1, i));
    const plan::Plan plan = PlanOf(RandomGraph(prng, /*shared_ranks=*/true));
    const auto report = CheckStep(plan, Programs(plan));
    ASSERT_TRUE(report.ok()) << "graph " << i << ": " << report.status();
  }
}

TEST(RandomGraphTest, BuildStep_AnyGraphUnderAnySchedule_PassesTheChecker) {
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    Prng prng(Hash64(kGraphSeed, 5, i));
    job::JobSpec spec = RandomGraph(prng, /*shared_ranks=*/true);
    DrawSchedule(prng, spec);
    const plan::Plan plan = PlanOf(spec);
    const CostModel costs = RandomCosts(plan, prng);
    const auto programs = BuildStepWithCosts(plan, costs);
    const auto report = CheckStep(plan, *programs);
    ASSERT_TRUE(report.ok()) << "graph " << i << ": " << report.status();
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      int64_t stated = 0;
      for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
        stated += plan::ActivationsKeptMax(plan, place.module, place.pp, plan.microbatches);
      }
      ASSERT_LE(report->live_activations_max[static_cast<size_t>(rank)], stated) << "graph " << i;
    }
  }
}

TEST(RandomGraphTest, BuildEvaluationOf_AnyGraph_DoesNotDeadlock) {
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    Prng prng(Hash64(kGraphSeed, 2, i));
    job::JobSpec spec = RandomGraph(prng, /*shared_ranks=*/true);
    DrawSchedule(prng, spec);
    const plan::Plan plan = PlanOf(spec);
    std::vector<Program> programs;
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      programs.push_back(BuildEvaluationOf(plan, Rank{rank}, 7));
    }
    const absl::Status status = CheckEvaluation(plan, programs, 7);
    ASSERT_TRUE(status.ok()) << "graph " << i << ": " << status;
  }
}

// Walks a program and counts, of each link and direction, the messages that have been received and
// not used, and of each part the activations that are kept.
class MessageCount {
 public:
  explicit MessageCount(const plan::Plan& plan) : plan_(plan) {}

  void Step(const plan::Place& place, const Instruction& one) {
    if (IsReceive(one.op)) ++waiting_[{one.link, IsBackwardMessage(one.op)}];
    if (!IsPass(one.op)) return;
    const plan::PartId part = {place.module, place.pp, one.chunk};
    const plan::Trains& trains =
        plan_.modules[static_cast<size_t>(part.module)].TrainsOf(part.stage, part.chunk);
    const Op last = trains.weights ? Op::kBackwardWeight : Op::kBackwardInput;
    if (one.op == Op::kForward) {
      for (int32_t link : plan_.LinksInto(part)) --waiting_[{link, false}];
      if (trains.any()) ++alive_[{part.module, part.stage}];
    } else if (one.op == Op::kBackwardInput) {
      for (int32_t link : plan_.LinksOutOf(part)) --waiting_[{link, true}];
    }
    if (one.op == last) --alive_[{part.module, part.stage}];
  }
  int64_t Waiting(int32_t link, bool backward) { return waiting_[{link, backward}]; }
  int64_t Alive(const plan::PartId& part) { return alive_[{part.module, part.stage}]; }

 private:
  const plan::Plan& plan_;
  std::map<std::pair<int32_t, bool>, int64_t> waiting_;
  std::map<std::pair<int32_t, int32_t>, int64_t> alive_;
};

TEST(RandomGraphTest, BuildStep_AnyGraph_KeepsNoMoreMessagesThanTheEstimateCounts) {
  int64_t messages = 0;
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    SCOPED_TRACE(i);
    Prng prng(Hash64(kGraphSeed, 5, i));
    job::JobSpec spec = RandomGraph(prng, /*shared_ranks=*/true);
    DrawSchedule(prng, spec);
    const plan::Plan plan = PlanOf(spec);
    const std::vector<Program> programs = *BuildStepWithCosts(plan, RandomCosts(plan, prng));
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      MessageCount count(plan);
      for (const Instruction& one : programs[static_cast<size_t>(rank)]) {
        count.Step(IsPass(one.op) ? *plan.PlaceOf(Rank{rank}, one.module) : plan::Place{}, one);
        if (!IsReceive(one.op)) continue;
        ++messages;
        const plan::Link& link = plan.links[static_cast<size_t>(one.link)];
        const plan::MessagesKept most = plan::MessagesKeptMax(plan, link, plan.microbatches);
        if (IsBackwardMessage(one.op)) {
          ASSERT_LE(count.Waiting(one.link, true), most.backward);
        } else {
          const int64_t alive = count.Alive(link.to),
                        kept = plan::ActivationsKeptMax(plan, link.to.module, link.to.stage,
                                                        plan.microbatches);
          ASSERT_LE(count.Waiting(one.link, false),
                    most.forward + std::max<int64_t>(0, kept - alive))
              << "link " << one.link << " of schedule " << static_cast<int>(spec.schedule.name);
        }
      }
    }
  }
  EXPECT_GT(messages, 100'000);
}

// Tables with holes and unequal widths: everything pure that works on them.
TEST(RandomGraphTest, BuildStep_DamagedTables_PassesTheChecker) {
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    SCOPED_TRACE(i);
    Prng prng(Hash64(kGraphSeed, 6, i));
    job::JobSpec spec = RandomGraph(prng, /*shared_ranks=*/true);
    DrawSchedule(prng, spec);
    const plan::Plan healthy = PlanOf(spec);
    plan::Layout layout = healthy.layout;
    for (const plan::ModulePlan& module : healthy.modules) {
      support::Damage(prng, healthy, module.index, layout);
    }
    const absl::StatusOr<plan::Plan> plan = plan::Expand(spec, layout);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const CostModel costs = RandomCosts(*plan, prng);
    const std::vector<Program> programs = *BuildStepWithCosts(*plan, costs);
    const auto report = CheckStep(*plan, programs);
    ASSERT_TRUE(report.ok()) << report.status();
    const Simulation all = Simulate(*plan, programs, costs);
    const Simulation preview = *SimulatePlan(*plan, costs);
    EXPECT_GT(all.step, 0);
    EXPECT_LE(all.step, 1.1 * preview.step);
    EXPECT_LE(preview.lower_bound, preview.bubble + 1e-9);
    EXPECT_LT(preview.bubble, 1);
    // Whoever lost its work has none, and every other rank has passes.
    for (int32_t rank = 0; rank < plan->world; ++rank) {
      const Program& program = programs[static_cast<size_t>(rank)];
      EXPECT_EQ(std::any_of(program.begin(), program.end(),
                            [](const Instruction& one) { return IsPass(one.op); }),
                !plan->PlacesOf(Rank{rank}).empty());
    }
  }
}

// What a schedule costs over the bound, with programs made under the same costs and with others.
struct Ratios {
  std::vector<double> known, guessed;
};
Ratios UnequalGraphs() {
  Ratios ratios;
  for (uint64_t i = 0; i < GraphCount(4000); ++i) {
    Prng prng(Hash64(kGraphSeed, 3, i));
    const plan::Plan plan = PlanOf(RandomGraph(prng, /*shared_ranks=*/false));
    const CostModel costs = RandomCosts(plan, prng);
    const auto over_bound = [&](const std::vector<Program>& programs) {
      const Simulation simulation = Simulate(plan, programs, costs);
      return (1 - simulation.lower_bound) / (1 - simulation.bubble);
    };
    ratios.known.push_back(over_bound(*BuildStepWithCosts(plan, costs)));
    ratios.guessed.push_back(over_bound(Programs(plan)));
  }
  std::sort(ratios.known.begin(), ratios.known.end());
  std::sort(ratios.guessed.begin(), ratios.guessed.end());
  return ratios;
}

double ShareWithin(const std::vector<double>& ratios, double limit) {
  const auto count =
      std::count_if(ratios.begin(), ratios.end(), [limit](double ratio) { return ratio <= limit; });
  return static_cast<double>(count) / static_cast<double>(ratios.size());
}

void Print(const char* name, const std::vector<double>& ratios) {
  std::printf("%zu graphs, %s: within 5 %% of the bound %.1f %%, p99 %.3f, worst %.3f\n",
              ratios.size(), name, 100 * ShareWithin(ratios, 1.05),
              ratios[ratios.size() * 99 / 100], ratios.back());
}

TEST(RandomGraphTest, Simulate_UnequalGraphs_StayNearTheBound) {
  const Ratios ratios = UnequalGraphs();
  Print("costs known", ratios.known);
  Print("costs guessed", ratios.guessed);
  EXPECT_GE(ratios.known.front(), 1 - 1e-9);  // it is a bound
  EXPECT_GE(ratios.guessed.front(), 1 - 1e-9);
  EXPECT_GE(ShareWithin(ratios.known, 1.05), 0.9);
  EXPECT_LE(ratios.known.back(), 1.3);
  EXPECT_GE(ShareWithin(ratios.guessed, 1.05), 0.8);
  EXPECT_LE(ratios.guessed.back(), 1.3);
}

double BlockingStep(const plan::Plan& plan, const std::vector<Program>& programs,
                    const CostModel& costs) {
  const Pipeline pipeline = MakePipeline(plan);
  const Wiring wiring = WireRanks(plan, pipeline);
  MemberCosts seconds;
  for (const std::vector<int32_t>& parts : wiring.parts_of) {
    std::vector<PartCost>& of_member = seconds.emplace_back();
    for (const int32_t p : parts) {
      const Part& part = pipeline.parts[static_cast<size_t>(p)];
      const PartCost& cost =
          costs.parts[static_cast<size_t>(part.module)][static_cast<size_t>(part.stage)];
      of_member.push_back({cost.forward, cost.backward_input, cost.backward_weight});
    }
  }
  std::vector<const Program*> pointers;
  for (const Program& program : programs) pointers.push_back(&program);
  const Execution execution =
      Execute(ExecutionModel::kBlocking, pipeline, wiring, pointers, seconds, {});
  return *std::max_element(execution.end.begin(), execution.end.end());
}

// The order of messages holds nothing up: with the costs that it was made under, programs on FIFO
// queues with rendezvous take no longer than data flow alone would, nor on a host that blocks.
TEST(RandomGraphTest, Simulate_UnderTheBuildersCosts_IsTheTimeOfDataFlow) {
  constexpr double kTicks = 1 << 20;  // of the longest pass
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    Prng prng(Hash64(kGraphSeed, 4, i));
    const plan::Plan plan = PlanOf(RandomGraph(prng, /*shared_ranks=*/false));
    CostModel costs = RandomCosts(plan, prng);
    double longest = 0;
    for (auto& module : costs.parts) {
      for (PartCost& cost : module) {
        longest = std::max({longest, cost.forward, cost.backward_input, cost.backward_weight});
      }
    }
    const Pipeline pipeline = MakePipeline(plan);
    std::vector<TickCost> ticks;
    const auto to_ticks = [longest](double& seconds) {
      const int64_t count = std::llround(seconds / longest * kTicks);
      seconds = static_cast<double>(count);
      return count;
    };
    for (const Part& part : pipeline.parts) {
      PartCost& cost =
          costs.parts[static_cast<size_t>(part.module)][static_cast<size_t>(part.stage)];
      const int64_t forward = to_ticks(cost.forward);
      const int64_t input = to_ticks(cost.backward_input);
      ticks.push_back({forward, input, to_ticks(cost.backward_weight)});
    }
    const Timeline timeline = MakeTimeline(pipeline, RulesOf(plan, pipeline).front(), ticks);
    const std::vector<Program> programs = *BuildStepWithCosts(plan, costs);
    ASSERT_NEAR(Simulate(plan, programs, costs).step, static_cast<double>(timeline.end), 0.5) << i;
    ASSERT_NEAR(BlockingStep(plan, programs, costs), static_cast<double>(timeline.end), 0.5) << i;
  }
}

}  // namespace
}  // namespace phalanx::schedule

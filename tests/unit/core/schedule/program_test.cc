#include "core/schedule/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <tuple>

#include "absl/strings/str_join.h"
#include "core/schedule/checker.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::NoArchitecture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "F0 F1 B0 ...": the passes of a program, with W for weights.
std::string Passes(const Program& program) {
  std::vector<std::string> words;
  for (const Instruction& i : program) {
    if (!IsPass(i.op)) continue;
    const char* name = i.op == Op::kForward ? "F" : i.op == Op::kBackwardInput ? "B" : "W";
    words.push_back(absl::StrCat(name, i.microbatch));
  }
  return absl::StrJoin(words, " ");
}

std::vector<Op> Ops(const Program& program) {
  std::vector<Op> ops;
  for (const Instruction& i : program) ops.push_back(i.op);
  return ops;
}

int32_t ForwardsBeforeBackward(const Program& program) {
  int32_t count = 0;
  for (const Instruction& i : program) {
    if (i.op == Op::kBackwardInput) break;
    count += i.op == Op::kForward ? 1 : 0;
  }
  return count;
}

TEST(ProgramTest, BuildStep_ChainOfThree_IsOneForwardOneBackward) {
  const std::vector<Program> programs = Programs(Chain(3, 4));
  EXPECT_EQ(Passes(programs[0]), "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  EXPECT_EQ(Passes(programs[1]), "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3");
  EXPECT_EQ(Passes(programs[2]), "F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3");
}

TEST(ProgramTest, BuildStep_MiddleStage_ReceivesRunsSendsAndEndsTheStep) {
  const std::vector<Program> programs = Programs(Chain(3, 1));
  EXPECT_THAT(Ops(programs[1]),
              ElementsAre(Op::kReceiveForward, Op::kForward, Op::kSendForward, Op::kReceiveBackward,
                          Op::kBackwardInput, Op::kSendBackward, Op::kBackwardWeight, Op::kReduce,
                          Op::kRecord, Op::kDecide, Op::kOptimize, Op::kGather));
}

TEST(ProgramTest, BuildStep_SourceStage_RunsBackwardInputAndSendsNoGradient) {
  const std::vector<Program> programs = Programs(Chain(2, 1));
  EXPECT_THAT(Ops(programs[0]), ElementsAre(Op::kForward, Op::kSendForward, Op::kReceiveBackward,
                                            Op::kBackwardInput, Op::kBackwardWeight, Op::kReduce,
                                            Op::kRecord, Op::kDecide, Op::kOptimize, Op::kGather));
}

TEST(ProgramTest, BuildStep_SeveralChunks_ReducesEachBehindItsOwnLastWeightPass) {
  const std::vector<Program> programs =
      Programs(ChainUnder(job::ScheduleName::kInterleaved, 2, 4, 2));
  for (const Program& program : programs) {
    int32_t weights_left[] = {4, 4};
    int32_t early = 0;
    for (const Instruction& i : program) {
      if (i.op == Op::kBackwardWeight) --weights_left[i.chunk];
      if (i.op != Op::kReduce) continue;
      EXPECT_EQ(weights_left[i.chunk], 0);
      early += weights_left[1 - i.chunk] > 0 ? 1 : 0;
    }
    EXPECT_EQ(early, 1) << "the other chunk has passes left that hide it";
  }
}

TEST(ProgramTest, BuildStep_EqualChain_PutsNoReceiveBeforeASendThatIsDue) {
  const std::vector<Program> programs = Programs(Chain(4, 8));
  for (const Program& program : programs) {
    for (size_t i = 1; i < program.size(); ++i) {
      if (program[i].op != Op::kSendForward) continue;
      EXPECT_EQ(program[i - 1].op, Op::kForward) << i;
    }
  }
}

struct Warmup {
  const char* name;
  job::JobSpec spec;
  int32_t stages;
  std::vector<int32_t> warmups;  // of each rank
};

TEST(ProgramTest, BuildStep_ModuleGraphs_WarmUpByStageOfTheGraph) {
  const job::Architecture none = NoArchitecture();
  const Warmup cases[] = {
      {"enc1 -> llm1",
       AJob().Module("enc", none).Module("language", none).Edge("enc", "language").Batch(9, 1),
       2,
       {1, 0}},
      {"enc1 -> llm3",
       AJob()
           .Module("enc", none)
           .Module("language", none, {.pp = 3})
           .Edge("enc", "language")
           .Batch(9, 1),
       4,
       {3, 2, 1, 0}},
      {"enc2 -> llm2",
       AJob()
           .Module("enc", none, {.pp = 2})
           .Module("language", none, {.pp = 2})
           .Edge("enc", "language")
           .Batch(9, 1),
       4,
       {3, 2, 1, 0}},
      {"img1, aud1 -> llm2 -> gen1",
       AJob()
           .Module("img", none)
           .Module("aud", none)
           .Module("language", none, {.pp = 2})
           .Module("gen", none)
           .Edge("img", "language")
           .Edge("aud", "language")
           .Edge("language", "gen")
           .Batch(9, 1),
       4,
       {3, 3, 2, 1, 0}},
  };
  for (const Warmup& c : cases) {
    const plan::Plan plan = PlanOf(c.spec);
    EXPECT_EQ(plan.stages, c.stages) << c.name;
    const std::vector<Program> programs = Programs(plan);
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      EXPECT_EQ(ForwardsBeforeBackward(programs[rank]), c.warmups[rank] + 1)
          << c.name << " rank " << rank;
    }
  }
}

TEST(ProgramTest, BuildStep_FewMicrobatches_LimitsTheWarmup) {
  EXPECT_EQ(Passes(Programs(Chain(5, 2))[0]), "F0 F1 B0 W0 B1 W1");
}

TEST(ProgramTest, BuildStep_EveryGraph_PassesTheChecker) {
  for (const NamedPlan& graph : Graphs()) {
    const auto report = CheckStep(graph.plan, Programs(graph.plan));
    EXPECT_TRUE(report.ok()) << graph.name << ": " << report.status();
  }
}

TEST(ProgramTest, BuildStepOf_EveryRankOfEveryGraph_IsThatOfBuildStep) {
  for (const NamedPlan& graph : Graphs()) {
    const std::vector<Program> programs = Programs(graph.plan);
    for (int32_t rank = 0; rank < graph.plan.world; ++rank) {
      const auto program = BuildStepOf(graph.plan, Rank{rank});
      ASSERT_TRUE(program.ok()) << program.status();
      EXPECT_EQ(*program, programs[static_cast<size_t>(rank)]) << graph.name << " rank " << rank;
    }
  }
}

TEST(ProgramTest, BuildStep_IdleRank_RecordsAndDecides) {
  for (const NamedPlan& graph : Graphs()) {
    if (graph.name != "a gap of idle ranks") continue;
    EXPECT_THAT(Ops(Programs(graph.plan)[1]), ElementsAre(Op::kRecord, Op::kDecide));
  }
}

TEST(ProgramTest, BuildStep_ColocatedEnds_SendAndReceiveStandTogether) {
  const plan::Plan plan = PlanOf(AJob()
                                     .Module("vision", NoArchitecture())
                                     .Module("language", NoArchitecture(), {.offset = 0})
                                     .Edge("vision", "language")
                                     .Batch(3, 1));
  const Program program = Programs(plan)[0];
  int32_t pairs = 0;
  for (size_t i = 0; i + 1 < program.size(); ++i) {
    if (!IsSend(program[i].op)) continue;
    EXPECT_EQ(program[i + 1].ticket, program[i].ticket);
    EXPECT_FALSE(IsSend(program[i + 1].op));
    ++pairs;
  }
  EXPECT_EQ(pairs, 6);
}

TEST(ProgramTest, BuildStep_ShortCutInTheGraph_LetsTheSourceRunAhead) {
  // The language model is two stages further than the encoder that feeds it; were its receives put
  // off until they are needed, the encoder could never run its three warm-up microbatches ahead.
  for (const NamedPlan& graph : Graphs()) {
    if (graph.name != "diamond with a short cut") continue;
    const std::vector<Program> programs = Programs(graph.plan);
    const Simulation simulation = Simulate(graph.plan, programs, EqualCosts(graph.plan, {1, 1, 1}));
    EXPECT_LE(1 - simulation.lower_bound, 1.0001 * (1 - simulation.bubble));
  }
}

TEST(ProgramTest, BuildStep_SameMicrobatchesWhateverTheData_GivesTheSameProgram) {
  // 9 and 10 samples over two replicas: the second replica's last microbatch is empty or not.
  const auto job = [](int64_t samples) {
    return PlanOf(
        AJob().Module("language", NoArchitecture(), {.dp = 2, .pp = 2}).Batch(samples, 1));
  };
  EXPECT_EQ(Programs(job(9)), Programs(job(10)));
}

std::vector<Program> Evaluations(const plan::Plan& plan, int64_t microbatches) {
  std::vector<Program> programs;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    programs.push_back(BuildEvaluationOf(plan, Rank{rank}, microbatches));
  }
  return programs;
}

TEST(EvaluationTest, BuildEvaluationOf_EveryGraph_RunsForwardAloneWithoutDeadlock) {
  for (const NamedPlan& graph : Graphs()) {
    for (int64_t microbatches : {1, 5, 40}) {
      const std::vector<Program> programs = Evaluations(graph.plan, microbatches);
      EXPECT_TRUE(CheckEvaluation(graph.plan, programs, microbatches).ok()) << graph.name;
      for (const Program& program : programs) {
        for (const Instruction& i : program) {
          EXPECT_TRUE(i.op == Op::kForward || IsForwardMessage(i.op)) << ToString(i);
        }
      }
    }
  }
}

TEST(EvaluationTest, BuildEvaluationOf_Chain_RunsEveryMicrobatchOnce) {
  EXPECT_EQ(Passes(BuildEvaluationOf(Chain(3, 2), Rank{1}, 4)), "F0 F1 F2 F3");
}

TEST(EvaluationTest, BuildEvaluationOf_NoMicrobatches_IsEmpty) {
  EXPECT_TRUE(BuildEvaluationOf(Chain(3, 2), Rank{1}, 0).empty());
}

// Processor seconds, the fewest of three tries.
double SecondsOf(const std::function<void()>& work) {
  double fewest = 0;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t begin = std::clock();
    work();
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    fewest = i == 0 ? seconds : std::min(fewest, seconds);
  }
  return fewest;
}

// One timeline serves all ranks, and each pass of it is in one program here.
TEST(ProgramTest, BuildStep_OfDeepPipelines_TakesLittleMoreThanTheTimeline) {
  const plan::Plan plan = Chain(4096, 8);
  const double of_all = SecondsOf([&] { Programs(plan); });
  const double of_one = SecondsOf([&] { BuildStepOf(plan, Rank{7}).value(); });
  EXPECT_LT(of_all, 10 * of_one);
}

TEST(InstructionTest, ToString_NamesWhatTheInstructionActsOn) {
  EXPECT_EQ(ToString({.op = Op::kSendForward, .link = 2, .microbatch = 3, .ticket = 9}),
            "SendForward(link 2, microbatch 3)");
  EXPECT_EQ(ToString({.op = Op::kForward, .module = 1, .microbatch = 0}),
            "Forward(module 1, chunk 0, microbatch 0)");
  EXPECT_EQ(ToString({.op = Op::kReduce, .module = 1}), "Reduce(module 1, chunk 0)");
  EXPECT_EQ(ToString({.op = Op::kRecord}), "Record");
}

}  // namespace
}  // namespace phalanx::schedule

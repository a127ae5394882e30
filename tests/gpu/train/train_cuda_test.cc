// Training on GPUs over NCCL, a process a rank: losses and parameters are those of the plain model
// on CPU, and all holders of a parameter or of optimizer state have the same bits. Where there are
// too few devices, a test says so and is skipped.
//
// In fp32. Compare() and the specs of SpecOf() as in the tests of ranks on CPU; what is allowed is
// what a GPU's other order of sums makes of as many steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/plan/plan.h"
#include "tests/gpu/ranks.h"
#include "tests/gpu/train/cuda_rank.h"
#include "tests/oracle/processes/held_file.h"
#include "tests/oracle/training/cases.h"
#include "tests/support/files.h"

namespace phalanx::oracle {
namespace {

constexpr int32_t kRankSecondsMax = 200;

CudaRun RunOf(const Case& c, int64_t steps) {
  CudaRun run{.name = c.name, .spec = SpecOf(c, job::Precision::kFp32), .stops = {}};
  run.spec.steps = steps;
  return run;
}

using Trained = std::vector<std::vector<TrainedStep>>;

// Trains the runs one after the other in one world of processes, and gives what came of each to
// `check`, in a process of its own: LibTorch's autograd starts CUDA, which the parent must not.
void TrainAndCheck(int32_t world, const std::vector<CudaRun>& runs,
                   const std::function<void(const Trained&)>& check) {
  const std::string folder = support::MakeFolder("train");
  const auto output = [&folder](const CudaRun& run, int32_t rank) {
    return absl::StrCat(folder, "/", run.name, "-", rank);
  };
  const std::vector<std::string> reports =
      gpu::RunRanks(world, kRankSecondsMax, [&](const gpu::ForkedRank& me) -> std::string {
        for (const CudaRun& run : runs) TrainOnCuda(run, me, output(run, me.rank));
        const bool released = comm::WaitForNcclReleases(comm::DeadlineIn(absl::Seconds(20)));
        return released ? "fine" : "not released";
      });
  ASSERT_EQ(reports, std::vector<std::string>(static_cast<size_t>(world), "fine"));
  const auto checked =
      gpu::RunRanks(1, kRankSecondsMax, [&](const gpu::ForkedRank&) -> std::string {
        Trained trained;
        for (const CudaRun& run : runs) {
          SCOPED_TRACE(run.name);
          const auto plan = PlanWithout(run.spec, run.lost);
          std::vector<std::string> paths;
          for (int32_t rank = 0; rank < world; ++rank) paths.push_back(output(run, rank));
          trained.push_back(PutTogetherHeld(*plan, run.spec.steps, paths));
        }
        check(trained);
        return testing::Test::HasFailure() ? "not as expected" : "fine";
      });
  EXPECT_EQ(checked, std::vector<std::string>{"fine"});
}

struct Tolerance {
  double loss, parameters;
};

void ExpectNear(const std::string& name, const std::vector<TrainedStep>& trained,
                const std::vector<TrainedStep>& expected, const Tolerance& tolerance) {
  SCOPED_TRACE(name);
  ASSERT_EQ(trained.size(), expected.size());
  double loss = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const train::Decision &a = trained[i].decision, &b = expected[i].decision;
    EXPECT_EQ(a.counted_tokens, b.counted_tokens) << "step " << i + 1;
    loss = std::max(loss, std::abs(a.loss - b.loss) / b.loss);
  }
  const WorstTensor worst = Compare(trained.back().parameters, expected.back().parameters);
  std::printf("%s: %zu steps, losses within %.2g, parameters within %.2g (%s)\n", name.c_str(),
              expected.size(), loss, worst.error, worst.name.c_str());
  EXPECT_LE(loss, tolerance.loss);
  EXPECT_LE(worst.error, tolerance.parameters) << worst.name;
}

void ExpectAsOnCpu(int32_t world, const std::vector<CudaRun>& runs, const Tolerance& tolerance) {
  TrainAndCheck(world, runs, [&](const Trained& trained) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const job::JobSpec& spec = runs[i].spec;
      ExpectNear(runs[i].name, trained[i], TrainPlain(spec, DataShapeOf(spec), spec.steps),
                 tolerance);
    }
  });
}

constexpr support::LlamaShape kTied{.tied_head = true};
constexpr support::LlamaShape kSharedHeads{.heads = 8, .kv_heads = 2};

// The largest layouts for each number of devices. With three tensor ranks two KV heads are shared.
std::vector<Case> LayoutsOf(int32_t world) {
  switch (world) {
    case 2:
      return {{"dp2", {.dp = 0}, {.dp = 2}},
              {"tied_pp2", {.dp = 0}, {.pp = 2}, kTied},
              {"tp2", {.dp = 0}, {.tp = 2}, {.kv_heads = 8}},
              {"shared_heads_tp2", {.dp = 0}, {.tp = 2}, kSharedHeads}};
    case 3:
      return {{"shared_heads_tp3", {.dp = 0}, {.tp = 3}, kSharedHeads}};
    case 4:
      return {{"dp4", {.dp = 0}, {.dp = 4}},
              {"tied_dp2_pp2", {.dp = 0}, {.dp = 2, .pp = 2}, kTied},
              {"tied_tp2_pp2", {.dp = 0}, {.tp = 2, .pp = 2}, kTied},
              {"shared_heads_tp2_dp2", {.dp = 0}, {.tp = 2, .dp = 2}, kSharedHeads}};
    default:
      return {{"tied_dp3_pp2", {.dp = 0}, {.dp = 3, .pp = 2}, kTied},
              {"shared_heads_tp3_dp2", {.dp = 0}, {.tp = 3, .dp = 2}, kSharedHeads}};
  }
}

class TrainCudaTest : public testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    const int32_t devices = gpu::DeviceCount();
    if (devices < GetParam())
      GTEST_SKIP() << "needs " << GetParam() << " GPUs; there are " << devices;
  }
};

TEST_P(TrainCudaTest, Copies_AfterFiftySteps_AreTheSameBitsAndLossesThoseOfTheCpu) {
  std::vector<CudaRun> runs;
  for (const Case& c : LayoutsOf(GetParam())) runs.push_back(RunOf(c, 50));
  ExpectAsOnCpu(GetParam(), runs, {.loss = 1e-6, .parameters = 1e-5});
}
INSTANTIATE_TEST_SUITE_P(Devices, TrainCudaTest, testing::Values(2, 3, 4, 6),
                         testing::PrintToStringParamName());

struct Widths {
  Case layout;
  plan::RankList lost;
};

// Layouts that so many ranks are left of: a replica, a stage, a replica and an encoder's are hit;
// replicas of widths 4, 3 and 1, of one module and of two.
std::vector<Widths> UnequalWidths(int32_t left) {
  if (left == 3) {
    return {
        {{"replicas", {.dp = 0}, {.tp = 2, .dp = 2}, kSharedHeads}, {Rank{3}}},
        {{"stages", {.dp = 0}, {.tp = 2, .pp = 2}, kTied}, {Rank{0}}},
        {{"beside_an_encoder", {.tp = 2, .dp = 2}, {.tp = 2, .dp = 2, .offset = 0}}, {Rank{2}}}};
  }
  const plan::RankList lost = {Rank{6}, Rank{8}, Rank{9}, Rank{11}};
  return {{{"of_4_3_1", {.dp = 0}, {.tp = 4, .dp = 3}, kSharedHeads}, lost},
          {{"both_of_4_3_1", {.tp = 4, .dp = 3}, {.tp = 4, .dp = 3, .offset = 0}}, lost}};
}

class TrainCudaWidthsTest : public TrainCudaTest {};

TEST_P(TrainCudaWidthsTest, UnequalWidths_TrainAsTheCpu) {
  // Ranks that share a device take turns, in slices of milliseconds.
  const int64_t steps = GetParam() > 4 ? 5 : 20;
  std::vector<CudaRun> runs;
  for (const Widths& widths : UnequalWidths(GetParam())) {
    runs.push_back(RunOf(widths.layout, steps));
    runs.back().lost = widths.lost;
  }
  ExpectAsOnCpu(GetParam(), runs, {.loss = 1e-6, .parameters = 1e-5});
}
INSTANTIATE_TEST_SUITE_P(Devices, TrainCudaWidthsTest, testing::Values(3, 8),
                         testing::PrintToStringParamName());

class TrainCudaPairTest : public TrainCudaTest {};

// The encoder's ranks are those of the stages: messages and passes in every order that schedules
// give them.
TEST_P(TrainCudaPairTest, EncoderBesideStages_EverySchedule_TrainsAsTheCpu) {
  using job::ScheduleName;
  const std::vector<std::pair<std::string, ScheduleName>> schedules = {
      {"1f1b", ScheduleName::k1F1B},
      {"zero_bubble_h1", ScheduleName::kZeroBubbleH1},
      {"zero_bubble_v", ScheduleName::kZeroBubbleV},
      {"interleaved", ScheduleName::kInterleaved},
      {"three_phase", ScheduleName::kThreePhase}};
  std::vector<CudaRun> runs;
  for (const auto& [name, schedule] : schedules) {
    CudaRun run = RunOf({name, {.dp = 2, .offset = 0}, {.pp = 2, .offset = 0}}, 5);
    const bool folded =
        schedule == ScheduleName::kZeroBubbleV || schedule == ScheduleName::kInterleaved;
    run.spec.schedule = {.name = schedule, .chunks = folded ? 2 : 1};
    runs.push_back(run);
  }
  runs.push_back(RunOf({"devices_of_their_own", {}, {}}, 5));
  ExpectAsOnCpu(2, runs, {.loss = 1e-6, .parameters = 1e-5});
}

// A host that enqueues nothing while its device has work goes on with messages all the same.
TEST_P(TrainCudaPairTest, HostThatDoesNotRunAhead_ThreeChunks_TrainsAsTheCpu) {
  CudaRun run = RunOf({"paced", {.dp = 2, .offset = 0}, {.pp = 2, .offset = 0}, {.layers = 6}}, 5);
  run.spec.schedule = {.name = job::ScheduleName::kInterleaved, .chunks = 3};
  run.run_ahead = 0;
  ExpectAsOnCpu(2, {run}, {.loss = 1e-6, .parameters = 1e-5});
}

// Wherever an epoch ends, the next one goes on as if nothing had happened.
TEST_P(TrainCudaPairTest, StopsAtRandomSteps_InTheSameProcesses_TrainAsOneEpoch) {
  constexpr int64_t kSteps = 30;
  Prng prng(11);
  std::vector<CudaRun> runs;
  for (const Case& c : {Case{"unbroken", {.dp = 2, .offset = 0}, {.pp = 2, .offset = 0}, kTied},
                        Case{"unbroken_dp2", {.dp = 0}, {.dp = 2}}}) {
    runs.push_back(RunOf(c, kSteps));
    runs.push_back(runs.back());
    runs.back().name += "_stopped";
    int64_t stop = 0;
    for (int32_t i = 0; i < 3; ++i)
      runs.back().stops.push_back(stop += 1 + static_cast<int64_t>(prng.Below(8)));
  }
  TrainAndCheck(2, runs, [&](const Trained& trained) {
    for (size_t i = 0; i < runs.size(); i += 2)
      ExpectNear(runs[i + 1].name, trained[i + 1], trained[i], {.loss = 1e-6, .parameters = 1e-5});
  });
}

// Of its own kind, by a process that lives to tell: nothing throws where it lets go of memory.
TEST_P(TrainCudaPairTest, DeviceThatFails_IsReportedByItsRank) {
  CudaRun run = RunOf({"fails", {.dp = 2, .offset = 0}, {.pp = 2, .offset = 0}}, 20);
  run.fails_at = 3;
  const auto reports =
      gpu::RunRanks(2, kRankSecondsMax, [&run](const gpu::ForkedRank& me) -> std::string {
        TrainOnCuda(run, me, "");
        return "fine";
      });
  EXPECT_EQ(reports, (std::vector<std::string>{"fine", "fine"}));
}
INSTANTIATE_TEST_SUITE_P(Devices, TrainCudaPairTest, testing::Values(2),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace phalanx::oracle

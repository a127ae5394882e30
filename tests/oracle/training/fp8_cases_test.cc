// Products in FP8: layouts of one job round alike, as worker/model/fp8.h says.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "tests/oracle/plain_model.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/harness.h"
#include "tests/oracle/training/memory_source.h"
#include "worker/comm/communicator.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::Layout;

constexpr int64_t kFp8Steps = 3;

NamedJob Fp8Job(const std::string& name, const Layout& layout,
                job::ScheduleName schedule = job::ScheduleName::kAuto, int32_t chunks = 1) {
  const job::Architecture decoder = support::Llama(
      {.hidden_size = 32, .heads = 2, .kv_heads = 2, .mlp_size = 64, .block = 16, .context = 64});
  NamedJob job = Named(name, AJob()
                                 .Module("language", decoder, layout)
                                 .Batch(8, 2)
                                 .Schedule(schedule, chunks)
                                 .Linear(job::LinearFormat::kFp8));
  job.data.text_max = 9;
  return job;
}

// The worst relative difference of any gradient or parameter from one rank's.
double Distance(const std::vector<TrainedStep>& a, const std::vector<TrainedStep>& b) {
  double distance = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t step = 0; step < a.size() && step < b.size(); ++step) {
    EXPECT_EQ(a[step].decision.counted_tokens, b[step].decision.counted_tokens);
    distance = std::max({distance, Compare(a[step].gradients, b[step].gradients).error,
                         Compare(a[step].parameters, b[step].parameters).error});
  }
  return distance;
}

std::vector<TrainedStep> Train(const NamedJob& job) {
  ExpectProven(job.spec);
  return TrainInProcess(job.spec, job.data, kFp8Steps);
}
std::vector<TrainedStep> TrainOnOneRank(NamedJob job) {
  job.spec = OnOneRankEach(job.spec);
  for (job::Module& module : job.spec.modules) module.recompute = job::Recompute::kNone;
  job.spec.schedule = {};
  return Train(job);
}

class Fp8Test : public testing::TestWithParam<NamedJob> {};

// A microbatch's tensors are whole on each rank, so they have the scales of one rank's.
TEST_P(Fp8Test, WithoutTensorShards_EqualsOneRank) {
  EXPECT_LE(Distance(Train(GetParam()), TrainOnOneRank(GetParam())), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Fp8Test,
    testing::Values(Fp8Job("pp2", {.pp = 2}),
                    Fp8Job("pp2_chunks", {.pp = 2}, job::ScheduleName::kInterleaved, 2),
                    Fp8Job("pp2_delayed_weights", {.pp = 2}, job::ScheduleName::kZeroBubbleH1),
                    Fp8Job("dp2", {.dp = 2}),
                    Fp8Job("selective", {.recompute = job::Recompute::kSelective}),
                    Fp8Job("full_pp2", {.pp = 2, .recompute = job::Recompute::kFull})),
    NameOf);

// Shards have scales of their own: what lies under 2^-14 of the largest may differ, and then what
// is computed from it is rounded elsewhere. Far less than what rounding itself does.
TEST(Fp8ShardsTest, OfTensorRanks_AreNearOneRank) {
  const std::vector<TrainedStep> one = TrainOnOneRank(Fp8Job("one", {}));
  NamedJob exact = Fp8Job("exact", {});
  exact.spec.linear = job::LinearFormat::kCompute;
  const double rounding = Distance(one, Train(exact));
  EXPECT_GT(rounding, 0.01) << "products in FP8 are";
  for (const bool sequence : {false, true}) {
    const std::vector<TrainedStep> shards =
        Train(Fp8Job("tp2", {.tp = 2, .pp = 2, .sequence = sequence}));
    const double distance = Distance(shards, one);
    EXPECT_LE(distance, rounding / 4);
    EXPECT_LE(distance, 0.02);
  }
}

// Validation has many batches, and rounding the weights is a pass over all of them.
TEST(Fp8EvaluationTest, WithoutAStepBetween_TakesTheWeightsThatAreRounded) {
  at::set_num_threads(1);
  NamedJob job = Fp8Job("evaluated", {});
  job.spec.steps = 10;  // the rate of the last one is 0
  const auto plan = PlanWithout(job.spec, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto source = MakeData(job.data);
  comm::InProcessWorld world(1);
  comm::Communicators communicators = world.Connect(plan::Communicators(*plan), Rank{0});
  const auto state = *train::TrainingState::Create(
      *plan, Rank{0}, {.compute = train::ComputeType(job.spec.compute)});
  auto trainer = train::Trainer::Create(*plan, Rank{0}, communicators, *source, *state, {}, {});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_EQ((*trainer)->Prepare(), absl::OkStatus());
  train::Executor& executor = (*trainer)->executor();
  train::Batches batches(*plan, executor.places(), *source, at::kCPU,
                         train::ComputeType(job.spec.compute),
                         train::TrainerOptions{}.length_multiple);
  const auto loss = [&] {
    const auto evaluated = executor.Evaluate(batches, {0, 1}, /*predict=*/false);
    EXPECT_TRUE(evaluated.ok()) << evaluated.status();
    return evaluated.ok() ? evaluated->loss_sum : 0;
  };
  const double before = loss();
  EXPECT_GT(before, 0);
  // Not as weights change: nobody tells the executor.
  train::PartState& part = *state->parts()[0];
  const plan::LocalMatrix* down = part.parameters().Find(plan::MatrixRole::kDown, 0, -1);
  ASSERT_NE(down, nullptr);
  const at::Tensor stored = part.weights().narrow(0, down->offset, down->rows * down->cols);
  const at::Tensor weights = stored.clone();
  stored.neg_();
  EXPECT_EQ(loss(), before);
  stored.copy_(weights);
  for (const int64_t step : {1, 2}) ASSERT_TRUE((*trainer)->RunOne(step).ok());
  EXPECT_NE(loss(), before) << "steps change them";
}

}  // namespace
}  // namespace phalanx::oracle

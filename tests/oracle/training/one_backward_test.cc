// The executor runs a part's weight pass inside its input pass exactly where the plan says so.
//
// Seen from the tensor group: while the rows of a pass travel, gradients of weights are there
// already, or none is until the pass has ended.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/plan/activations.h"
#include "core/plan/plan.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/harness.h"
#include "tests/oracle/training/memory_source.h"
#include "tests/support/forwarding_communicator.h"
#include "worker/comm/communicator.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

// Looks before each collective: those of a tensor group are all of passes, and messages are of what
// comes once a step.
class Watched final : public support::ForwardingCommunicator {
 public:
  Watched(std::unique_ptr<comm::Communicator> inner, std::function<void()> look)
      : ForwardingCommunicator(std::move(inner)), look_(std::move(look)) {}
  absl::Status AllReduceSum(void* data, int64_t count, comm::DType dtype) override {
    look_();
    return ForwardingCommunicator::AllReduceSum(data, count, dtype);
  }
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count,
                                comm::DType dtype) override {
    look_();
    return ForwardingCommunicator::ReduceScatterSum(in, out, count, dtype);
  }
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType dtype) override {
    look_();
    return ForwardingCommunicator::AllGather(in, out, count, dtype);
  }

 private:
  const std::function<void()> look_;
};

// Of the one part of a rank.
struct Seen {
  plan::PartId part;
  bool trains = false;
  int64_t looks = 0, with_gradients = 0;
};

// Of each rank, in one step of one microbatch.
std::vector<Seen> SeenInOneStep(const plan::Plan& plan, const DataShape& data) {
  at::set_num_threads(1);
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  comm::InProcessWorld world(plan.world);
  std::vector<Seen> all(static_cast<size_t>(plan.world));
  const auto run = [&](int32_t rank) {
    Seen& seen = all[static_cast<size_t>(rank)];
    const std::unique_ptr<train::SampleSource> source = MakeData(data);
    const std::unique_ptr<train::TrainingState> state = *train::TrainingState::Create(
        plan, Rank{rank}, {.compute = train::ComputeType(plan.spec.compute)});
    EXPECT_EQ(state->parts().size(), 1u);
    train::PartState& part = *state->parts().front();
    seen.part = {part.place().module, part.place().pp, part.chunk()};
    seen.trains = part.trains();
    bool watching = false;
    comm::Communicators communicators = world.Connect(specs, Rank{rank});
    for (size_t i = 0; i < communicators.size(); ++i) {
      if (specs[i].use != plan::CommunicatorSpec::Use::kTensor || communicators[i] == nullptr)
        continue;
      communicators[i] = std::make_unique<Watched>(std::move(communicators[i]), [&] {
        if (!watching || !seen.trains) return;
        ++seen.looks;
        if (part.gradients().any().item<bool>()) ++seen.with_gradients;
      });
    }
    auto trainer = train::Trainer::Create(plan, Rank{rank}, communicators, *source, *state, {}, {});
    absl::Status status = trainer.ok() ? (*trainer)->Prepare() : trainer.status();
    part.ZeroGradients();  // of the warm-up
    watching = true;
    if (status.ok()) status = (*trainer)->RunOne(1).status();
    watching = false;
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
    if (!status.ok()) world.Abort(status);
  };
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < plan.world; ++rank) threads.emplace_back(run, rank);
  threads.clear();
  return all;
}

struct OneBackwardCase {
  NamedJob job;
  std::vector<int32_t> one;  // of the ranks' parts those whose passes are one
};

class OneBackwardTest : public testing::TestWithParam<OneBackwardCase> {};

TEST_P(OneBackwardTest, WeightGradients_ComeInsideTheInputPass_WhereThePlanSaysSo) {
  const auto& [job, one] = GetParam();
  const auto plan = plan::MakePlan(job.spec, plan::MakeCluster(1, job.spec.World()), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->microbatches, 1);
  const std::vector<Seen> all = SeenInOneStep(*plan, job.data);
  for (int32_t rank = 0; rank < plan->world; ++rank) {
    SCOPED_TRACE(rank);
    const Seen& seen = all[static_cast<size_t>(rank)];
    const bool expected = std::find(one.begin(), one.end(), rank) != one.end();
    EXPECT_EQ(plan::BackwardIsOne(*plan, seen.part), expected);
    EXPECT_EQ(seen.with_gradients > 0, expected);
    EXPECT_EQ(seen.looks > seen.with_gradients, seen.trains);
  }
}

std::vector<OneBackwardCase> OneBackwardCases() {
  std::vector<OneBackwardCase> cases;
  const auto add = [&](const std::string& name, support::AJob job, std::vector<int32_t> one) {
    NamedJob named = Named(name, std::move(job.Batch(2, 2)));
    named.data.images_min = 1;  // no lane is without rows
    cases.push_back({std::move(named), std::move(one)});
  };
  using enum job::ScheduleName;
  add("alone", LanguageAlone({.tp = 2}), {0, 1});
  add("pipeline", LanguageAlone({.tp = 2, .pp = 2}), {0, 1});
  add("zero_bubble", LanguageAlone({.tp = 2, .pp = 2}).Schedule(kZeroBubbleH1), {});
  add("encoder_elsewhere", VisionAndLanguage({.tp = 2}, {.tp = 2}), {0, 1});
  add("frozen_encoder_elsewhere",
      support::AJob()
          .Module("vision", TinyVision(), {.tp = 2, .frozen = true})
          .Module("language", TinyLanguage(), {.tp = 2})
          .Edge("vision", "language"),
      {2, 3});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Parts, OneBackwardTest, testing::ValuesIn(OneBackwardCases()),
                         [](const auto& info) { return info.param.job.name; });

}  // namespace
}  // namespace phalanx::oracle

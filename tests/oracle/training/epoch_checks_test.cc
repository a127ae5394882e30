// What ends an epoch that others would train on in: state that differs between its homes, and a
// communicator that has failed while the device is waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/oracle/training/cases.h"
#include "tests/support/forwarding_communicator.h"
#include "worker/comm/communicator.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

using testing::HasSubstr;

// Two replicas, each of which mirrors the other's optimizer state.
class TwoReplicas {
 public:
  TwoReplicas() {
    job_ = Named("two", support::AJob().Module("language", TinyLanguage(), {.dp = 2}).Batch(4, 1));
    job_.spec.recovery.state_copies = 2;
    job_.spec.steps = 5;
    plan_ = *plan::MakePlan(job_.spec, plan::MakeCluster(1, 2), Epoch{1});
    for (int32_t rank : {0, 1})
      states_[rank] = *train::TrainingState::Create(plan_, Rank{rank}, {.compute = at::kDouble});
  }

  train::TrainingState& state(int32_t rank) { return *states_[rank]; }
  // Both ranks prepare an epoch behind the last one's last step, and do so many.
  std::array<absl::Status, 2> RunEpoch(int64_t steps) {
    plan_.layout.epoch = Epoch{++epoch_};
    comm::InProcessWorld world(2);
    std::array<absl::Status, 2> ended;
    const auto run = [&](int32_t rank) {
      ended[rank] = Train(world, rank, steps);
      if (!ended[rank].ok()) world.Abort(ended[rank]);
    };
    { const std::jthread first(run, 0), second(run, 1); }
    return ended;
  }

 private:
  absl::Status Train(comm::InProcessWorld& world, int32_t rank, int64_t steps) {
    comm::Communicators communicators = world.Connect(plan::Communicators(plan_), Rank{rank});
    train::TrainerOptions options;
    const train::Standing standing = states_[rank]->StandingNow();
    if (epoch_ > 1) options.start = {standing.decided, standing.counts};
    const std::unique_ptr<train::SampleSource> source = MakeData(job_.data);
    const auto trainer = train::Trainer::Create(plan_, Rank{rank}, communicators, *source,
                                                *states_[rank], options, {});
    if (!trainer.ok()) return trainer.status();
    if (const absl::Status ready = (*trainer)->Prepare(); !ready.ok()) return ready;
    for (int64_t step = standing.decided.step + 1; step <= standing.decided.step + steps; ++step) {
      if (const absl::Status done = (*trainer)->RunOne(step).status(); !done.ok()) return done;
    }
    return absl::OkStatus();
  }

  NamedJob job_;
  plan::Plan plan_;
  std::array<std::unique_ptr<train::TrainingState>, 2> states_;
  int64_t epoch_ = 0;
};

// Of the optimizer state that the rank mirrors.
void SpoilMirror(train::TrainingState& state, at::Tensor train::StateBlock::*of) {
  for (train::StateBlock& block : state.parts()[0]->blocks()) {
    if (!block.mirrors || !(block.*of).defined() || (block.*of).numel() == 0) continue;
    (block.*of)[0] += 1e-9;
    return;
  }
  FAIL() << "it mirrors nothing";
}

TEST(EpochChecksTest, StateThatIsAlike_IsTrainedOn) {
  TwoReplicas replicas;
  for (const int64_t steps : {2, 1, 1}) {
    for (const absl::Status& status : replicas.RunEpoch(steps)) EXPECT_EQ(status, absl::OkStatus());
  }
}

TEST(EpochChecksTest, MirrorThatDiffers_EndsTheNextEpochBeforeItsFirstStep) {
  const struct {
    at::Tensor train::StateBlock::*of;
    const char* said;
  } cases[] = {
      {&train::StateBlock::master, "mirrors of optimizer state differ from the parameters"},
      {&train::StateBlock::first_moment, "first moments are not those of rank 0"},
      {&train::StateBlock::second_moment, "second moments are not those of rank 0"}};
  for (const auto& [of, said] : cases) {
    TwoReplicas replicas;
    for (const absl::Status& status : replicas.RunEpoch(2)) ASSERT_EQ(status, absl::OkStatus());
    SpoilMirror(replicas.state(1), of);
    const std::array<absl::Status, 2> ended = replicas.RunEpoch(1);
    EXPECT_EQ(ended[1].code(), absl::StatusCode::kInternal) << ended[1];
    EXPECT_THAT(std::string(ended[1].message()), HasSubstr(said));
    EXPECT_EQ(replicas.state(1).StandingNow().decided.step, 2);
  }
}

// As NCCL says it: of what is enqueued, to whoever asks.
class FailedOnTheDevice final : public support::ForwardingCommunicator {
 public:
  FailedOnTheDevice(std::unique_ptr<comm::Communicator> inner, const bool& failed)
      : ForwardingCommunicator(std::move(inner)), failed_(failed) {}
  absl::Status Check() override {
    return failed_ ? absl::UnavailableError("NCCL: remote process exited") : absl::OkStatus();
  }

 private:
  const bool& failed_;
};

// Whichever of its communicators it is.
TEST(EpochChecksTest, FailureOfACommunicator_EndsTheWaitForTheDevice) {
  NamedJob job =
      Named("two", support::AJob().Module("language", TinyLanguage(), {.dp = 2}).Batch(4, 1));
  const plan::Plan plan = *plan::MakePlan(job.spec, plan::MakeCluster(1, 2), Epoch{1});
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  size_t tried = 0;
  for (size_t fails = 0; fails < specs.size(); ++fails) {
    comm::InProcessWorld world(2);
    comm::Communicators communicators = world.Connect(specs, Rank{0});
    if (communicators[fails] == nullptr) continue;
    SCOPED_TRACE(specs[fails].name);
    ++tried;
    bool failed = false;
    communicators[fails] =
        std::make_unique<FailedOnTheDevice>(std::move(communicators[fails]), failed);
    const auto state = *train::TrainingState::Create(plan, Rank{0}, {.compute = at::kDouble});
    const std::unique_ptr<train::SampleSource> source = MakeData(job.data);
    const auto trainer =
        *train::Trainer::Create(plan, Rank{0}, communicators, *source, *state, {}, {});
    int64_t asked = 0;
    const auto never = [&] {
      failed = ++asked > 3;
      return false;
    };
    EXPECT_EQ(trainer->executor().Await(never, absl::Minutes(1), "nothing comes"),
              absl::UnavailableError("NCCL: remote process exited"));
  }
  EXPECT_GT(tried, 1u);
}

}  // namespace
}  // namespace phalanx::oracle

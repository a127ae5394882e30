// Steps whose gradients are not finite, and steps in which no token counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "tests/oracle/training/cases.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

// The samples of another source, in which no token counts.
class WithoutLabels final : public train::SampleSource {
 public:
  explicit WithoutLabels(train::SampleSource& inner) : inner_(inner) {}
  int64_t size() const override { return inner_.size(); }
  data::SampleShape shape(int64_t sample) const override {
    data::SampleShape shape = inner_.shape(sample);
    shape.counted = 0;
    return shape;
  }
  absl::Span<const data::ItemRows> rows(int64_t sample) const override {
    return inner_.rows(sample);
  }
  std::string NameOf(int64_t sample) const override { return inner_.NameOf(sample); }
  void Announce(absl::Span<const int64_t> samples) override { inner_.Announce(samples); }
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) override {
    auto bare = std::make_shared<data::Sample>(**inner_.Take(sample));
    std::fill(bare->label_counts.begin(), bare->label_counts.end(), 0);
    return bare;
  }

 private:
  train::SampleSource& inner_;
};

class SkippedTest : public testing::Test {
 protected:
  SkippedTest() {
    job_.spec.steps = 40;
    plan_ = *plan::MakePlan(job_.spec, plan::MakeCluster(1, 1), Epoch{1});
    state_ = *train::TrainingState::Create(plan_, Rank{0}, {.compute = at::kDouble});
    communicators_.resize(plan::Communicators(plan_).size());
    trainer_ = *train::Trainer::Create(
        plan_, Rank{0}, communicators_, *source_, *state_, {.skipped_in_a_row_max = 4},
        {.on_step = [this](const train::StepSummary& step) { last_ = step; }});
    EXPECT_TRUE(trainer_->Prepare().ok());
  }
  at::Tensor& weights() { return state_->parts()[0]->weights(); }

  NamedJob job_ = Named("alone", support::AJob().Module("language", TinyLanguage()).Batch(4, 2));
  plan::Plan plan_;
  std::unique_ptr<train::SampleSource> source_ = MakeData(job_.data);
  std::unique_ptr<train::TrainingState> state_;
  comm::Communicators communicators_;
  std::unique_ptr<train::Trainer> trainer_;
  train::StepSummary last_;
};

TEST_F(SkippedTest, StepThatIsNotFinite_ChangesNothingAndTrainingGoesOn) {
  ASSERT_TRUE(trainer_->RunOne(1).ok());
  const at::Tensor before = weights().clone();
  weights().fill_(std::numeric_limits<double>::infinity());
  const at::Tensor poisoned = weights().clone();
  const auto decision = trainer_->RunOne(2);
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->verdict, train::Verdict::kSkipped);
  EXPECT_TRUE(last_.skipped);
  EXPECT_TRUE(at::equal(weights(), poisoned));
  EXPECT_EQ(state_->counts(), (train::Counts{.updates = 1, .skipped_in_a_row = 1}));
  EXPECT_EQ(state_->StandingNow().homes.at(0).applied, 2);

  weights().copy_(before);
  ASSERT_TRUE(trainer_->RunOne(3).ok());
  EXPECT_EQ(state_->counts(), (train::Counts{.updates = 2}));
  EXPECT_FALSE(at::equal(weights(), before));
  EXPECT_TRUE(at::isfinite(weights()).all().item<bool>());
}

TEST_F(SkippedTest, ManyInARow_EndTheRun) {
  weights().fill_(std::numeric_limits<double>::quiet_NaN());
  const absl::Status status = trainer_->Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(last_.step, 4);
}

TEST_F(SkippedTest, StepsWithoutACountedToken_UpdateNothingAndAreToldAsThat) {
  WithoutLabels source(*source_);
  const auto trainer = *train::Trainer::Create(plan_, Rank{0}, communicators_, source, *state_,
                                               {.skipped_in_a_row_max = 4}, {});
  const at::Tensor before = weights().clone();
  ASSERT_TRUE(trainer->Prepare().ok());
  const absl::Status status = trainer->Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(state_->decided().step, 4);
  EXPECT_EQ(state_->decided().verdict, train::Verdict::kEmpty);
  EXPECT_EQ(state_->counts(), train::Counts{});
  EXPECT_EQ(state_->StandingNow().homes.at(0).applied, 4);
  EXPECT_TRUE(at::equal(weights(), before));
}

}  // namespace
}  // namespace phalanx::oracle

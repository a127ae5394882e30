// A rank whose passes are slowed on demand, and who waits for data.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "core/posix/activity.h"
#include "tests/oracle/training/cases.h"
#include "worker/train/fault_points.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

using std::chrono::steady_clock;

constexpr auto kWait = std::chrono::milliseconds(250);
constexpr double kFactor = 200;

// The samples of another source, which has none of them for a while.
class LateSource final : public train::SampleSource {
 public:
  explicit LateSource(std::unique_ptr<train::SampleSource> inner) : inner_(std::move(inner)) {}
  int64_t size() const override { return inner_->size(); }
  data::SampleShape shape(int64_t sample) const override { return inner_->shape(sample); }
  absl::Span<const data::ItemRows> rows(int64_t sample) const override {
    return inner_->rows(sample);
  }
  std::string NameOf(int64_t sample) const override { return inner_->NameOf(sample); }
  void Announce(absl::Span<const int64_t> samples) override { inner_->Announce(samples); }
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) override {
    const auto begin = steady_clock::now();
    while (late_ && steady_clock::now() - begin < kWait) {
    }
    waited_ = waited_ || std::exchange(late_, false);
    return inner_->Take(sample);
  }
  void BeLate() { late_ = true; }
  bool waited() const { return waited_; }

 private:
  const std::unique_ptr<train::SampleSource> inner_;
  bool late_ = false, waited_ = false;
};

TEST(SlowedTest, WaitForData_IsNotSlowedToo) {
  NamedJob job = Named("alone", support::AJob().Module("language", TinyLanguage()).Batch(4, 2));
  job.spec.steps = 2;
  const plan::Plan plan = *plan::MakePlan(job.spec, plan::MakeCluster(1, 1), Epoch{1});
  const auto state = *train::TrainingState::Create(plan, Rank{0}, {.compute = at::kDouble});
  int told = 0;
  train::FaultPoints faults([&told](const auto&, auto, auto) { ++told; });
  state->set_faults(&faults);
  LateSource source(MakeData(job.data));
  comm::Communicators communicators(plan::Communicators(plan).size());
  const auto trainer =
      *train::Trainer::Create(plan, Rank{0}, communicators, source, *state, {}, {});
  ASSERT_TRUE(trainer->Prepare().ok());
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  ASSERT_TRUE(trainer->RunOne(1).ok());
  // Of the next step its first pass, which is the one that waits.
  source.BeLate();
  faults.Inject(
      {.kind = job::FaultKind::kSlow, .factor = kFactor, .duration = absl::Nanoseconds(1)});
  const auto begin = steady_clock::now();
  ASSERT_TRUE(trainer->RunOne(2).ok());
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(source.waited());
  EXPECT_LT(steady_clock::now() - begin, kWait * kFactor / 2);
}

}  // namespace
}  // namespace phalanx::oracle

#include "worker/checkpoint/writer.h"

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/specs.h"
#include "worker/checkpoint/loader.h"
#include "worker/checkpoint/snapshot.h"

namespace phalanx::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kStoreName[] = "00c0ffee00c0ffee";
constexpr int64_t kWrittenJob = 7;
constexpr std::chrono::seconds kPatience{60};

// One rank, which has all of a job's state; it is told what a coordinator would say.
class WriterTest : public testing::Test {
 protected:
  void Write(int64_t step) {
    ASSERT_TRUE(writer_.Begin({.step = step, .epoch = 1}));
    ASSERT_TRUE(writer_.AwaitWritten(std::chrono::steady_clock::now() + kPatience));
  }
  absl::StatusOr<Published> Publish(int64_t step) {
    const train::Decision decision{.step = step, .verdict = train::Verdict::kCommitted};
    Publication publication{.directory = directory_,
                            .manifest = ManifestOf(plan_, kStoreName, kWrittenJob, decision, {}),
                            .keep = 8};
    publication.manifest.data_digest = std::string(32, 'd');
    {
      const MutexLock lock(&mu_);
      publication.parts_digest = DigestOf(std::vector<PartFile>{parts_.at(step)});
    }
    writer_.Publish(std::move(publication));
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const MutexLock lock(&mu_);
    while (!published_.has_value()) {
      if (changed_.WaitUntil(&mu_, deadline)) return absl::DeadlineExceededError("never");
    }
    return *std::exchange(published_, std::nullopt);
  }
  std::string DraftOf(int64_t step) const {
    return absl::StrCat(directory_, "/",
                        DraftName({.step = step, .epoch = 1}, kStoreName, kWrittenJob));
  }

  const std::string directory_ = support::MakeFolder("checkpoints");
  const plan::Plan plan_ = *plan::MakePlan(
      support::AJob().Module("language", support::Llama({.layers = 1})).Batch(2, 1).Steps(100),
      plan::MakeCluster(1, 1), Epoch{1});
  const std::unique_ptr<train::TrainingState> state_ =
      *train::TrainingState::Create(plan_, Rank{0}, {});
  const std::unique_ptr<Snapshot> snapshot_ = *Snapshot::Create(plan_, *state_);
  Mutex mu_;
  CondVar changed_;
  std::map<int64_t, PartFile> parts_ ABSL_GUARDED_BY(mu_);  // by step
  std::optional<absl::StatusOr<Published>> published_ ABSL_GUARDED_BY(mu_);
  Writer writer_{*snapshot_,
                 {.directory = directory_, .store = kStoreName, .job = kWrittenJob},
                 [this](const Written& written) {
                   ASSERT_TRUE(written.part.ok() && written.part->has_value());
                   const MutexLock lock(&mu_);
                   parts_[written.name.step] = **written.part;
                 },
                 [this](const CheckpointName&, const absl::StatusOr<Published>& published) {
                   const MutexLock lock(&mu_);
                   published_ = published;
                   changed_.SignalAll();
                 }};
};

// As long as a coordinator waits for its publication: until two later ones are whole.
TEST_F(WriterTest, OrderThatComesBehindTwoLaterCheckpoints_IsCarriedOut) {
  for (const int64_t step : {5, 10, 15}) Write(step);
  for (const int64_t step : {5, 10, 15}) {
    const absl::StatusOr<Published> published = Publish(step);
    ASSERT_TRUE(published.ok()) << published.status();
    EXPECT_EQ(published->path,
              absl::StrCat(directory_, "/", ToString(CheckpointName{.step = step, .epoch = 1})));
  }
}

TEST_F(WriterTest, CheckpointThatIsNeverPublished_GoesWithTheThirdBehindIt_AndThatIsSaid) {
  for (const int64_t step : {5, 10, 15}) Write(step);
  EXPECT_TRUE(std::filesystem::exists(DraftOf(5)));
  Write(20);
  EXPECT_FALSE(std::filesystem::exists(DraftOf(5)));
  EXPECT_TRUE(std::filesystem::exists(DraftOf(10)));
  EXPECT_THAT(std::string(Publish(5).status().message()),
              HasSubstr("rank 0 has given it up: it was told to publish it after 3 later ones"));
}

TEST_F(WriterTest, CheckpointThatWasGivenUp_IsToldWithWhatElseKeepsItFromBeingPublished) {
  for (const int64_t step : {5, 10, 15, 20}) Write(step);
  const std::string later = DraftName({.step = 15, .epoch = 2}, kStoreName, kWrittenJob);
  std::filesystem::create_directory(absl::StrCat(directory_, "/", later));
  EXPECT_THAT(std::string(Publish(5).status().message()),
              AllOf(HasSubstr(absl::StrCat("epoch 1 of the job is over: ", later, " is there")),
                    HasSubstr("rank 0 has given it up")));
}

// An order may be told twice, and the checkpoint is there.
TEST_F(WriterTest, OrderThatIsToldAgainLate_FindsWhatItHasPublished) {
  Write(5);
  const absl::StatusOr<Published> first = Publish(5);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const int64_t step : {10, 15, 20, 25}) Write(step);
  const absl::StatusOr<Published> again = Publish(5);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->path, first->path);
}

}  // namespace
}  // namespace phalanx::checkpoint

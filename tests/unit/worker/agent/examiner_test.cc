#include "worker/agent/examiner.h"

#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

constexpr ExaminerOptions kNeverByItself = {.interval = absl::Hours(1'000),
                                            .interval_min = absl::ZeroDuration()};

// A machine that is examined when a test lets it be.
class Machine {
 public:
  job::Finding::Verdict verdict = job::Finding::Verdict::kWarning;
  // How often it was examined is what is found of it.
  std::vector<job::Finding> Examine() {
    MutexLock lock(&mutex_);
    ++begun_;
    changed_.SignalAll();
    while (begun_ > allowed_) changed_.Wait(&mutex_);
    return {{.check = "count", .verdict = verdict, .found = absl::StrCat(begun_)}};
  }
  void AwaitBeginning(int count) {
    MutexLock lock(&mutex_);
    while (begun_ < count) changed_.Wait(&mutex_);
  }
  void Allow(int count) {
    MutexLock lock(&mutex_);
    allowed_ = count;
    changed_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int allowed_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ExaminerTest : public ::testing::Test {
 protected:
  ~ExaminerTest() override { machine_.Allow(1'000'000); }
  void Start(ExaminerOptions options) {
    examiner_.emplace([this] { return machine_.Examine(); }, options);
  }

  Machine machine_;
  std::optional<Examiner> examiner_;
};

TEST_F(ExaminerTest, FirstExamination_IsAtOnce_AndNobodyWaitsForIt) {
  Start(kNeverByItself);
  machine_.AwaitBeginning(1);
  EXPECT_EQ(examiner_->Last(), nullptr);
  EXPECT_TRUE(examiner_->busy());
}

TEST_F(ExaminerTest, WhoeverAsks_GetsAnother) {
  Start(kNeverByItself);
  machine_.Allow(1);
  while (examiner_->Last() == nullptr) std::this_thread::yield();
  const Examiner::Findings first = examiner_->Last();
  EXPECT_EQ(first->at(0).found, "1");
  EXPECT_FALSE(examiner_->busy());
  examiner_->Ask();
  machine_.AwaitBeginning(2);
  EXPECT_EQ(examiner_->Last(), first) << "until it has ended";
  machine_.Allow(2);
  while (examiner_->Last() == first) std::this_thread::yield();
  EXPECT_EQ(examiner_->Last()->at(0).found, "2");
}

TEST_F(ExaminerTest, WithoutAQuestion_TheMachineIsExaminedEachInterval) {
  machine_.Allow(1'000'000);
  Start({.interval = absl::Milliseconds(1), .interval_min = absl::ZeroDuration()});
  machine_.AwaitBeginning(3);
}

TEST_F(ExaminerTest, MachineWithAProblem_IsLookedAtAgainSoon) {
  machine_.Allow(1'000'000);
  machine_.verdict = job::Finding::Verdict::kProblem;
  Start(kNeverByItself);
  machine_.AwaitBeginning(3);
}

TEST_F(ExaminerTest, EndBetweenExaminations_WaitsForNone) {
  machine_.Allow(1);
  Start({.interval = absl::Hours(1), .interval_min = absl::Hours(1)});
  machine_.AwaitBeginning(1);
  examiner_->Ask();
  examiner_.reset();
}

}  // namespace
}  // namespace phalanx::agent

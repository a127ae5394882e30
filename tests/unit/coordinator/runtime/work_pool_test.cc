#include "coordinator/runtime/work_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <vector>

namespace phalanx::coordinator {
namespace {

// Opens once, for all who wait.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.SignalAll();
  }
  void Await() {
    MutexLock lock(&mu_);
    while (!open_) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool open_ = false;
};

TEST(WorkPoolTest, Work_IsDoneOnItsThreads) {
  Gate done;
  WorkPool pool("test", WorkPool::Priority::kServing, 1, 10);
  const std::thread::id caller = std::this_thread::get_id();
  pool.Add([&](const absl::Status& go) {
    EXPECT_TRUE(go.ok());
    EXPECT_NE(std::this_thread::get_id(), caller);
    done.Open();
  });
  done.Await();
}

TEST(WorkPoolTest, WorkBehindOthers_LeavesThemTheProcessor) {
  Gate done;
  const int before = getpriority(PRIO_PROCESS, 0);
  WorkPool pool("test", WorkPool::Priority::kBehind, 1, 10);
  pool.Add([&](const absl::Status&) {
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), std::min(before + 10, 19));
    done.Open();
  });
  done.Await();
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

TEST(WorkPoolTest, MoreThanMayWait_IsRefusedAtOnce) {
  Gate begun, go_on;
  std::vector<absl::Status> told(3);
  WorkPool pool("test", WorkPool::Priority::kServing, 1, 2);
  pool.Add([&](const absl::Status&) {
    begun.Open();
    go_on.Await();
  });
  begun.Await();
  for (absl::Status& status : told) {
    pool.Add([&status](const absl::Status& go) { status = go; });
  }
  EXPECT_EQ(told[2].code(), absl::StatusCode::kResourceExhausted) << told[2];
  go_on.Open();
}

TEST(WorkPoolTest, WorkOfOneOwner_IsDoneOneAtATime_AndHoldsUpNobodyElse) {
  Gate begun, go_on, other, last;
  WorkPool pool("test", WorkPool::Priority::kServing, 2, 10);
  bool first_done = false;
  pool.Add(
      [&](const absl::Status&) {
        begun.Open();
        go_on.Await();
        first_done = true;
      },
      "ann");
  begun.Await();
  pool.Add(
      [&](const absl::Status&) {
        EXPECT_TRUE(first_done);
        last.Open();
      },
      "ann");
  pool.Add([&](const absl::Status&) { other.Open(); }, "bob");
  other.Await();
  go_on.Open();
  last.Await();
}

TEST(WorkPoolTest, OneOwner_HasAThirdOfThoseThatMayWait) {
  Gate begun, go_on;
  std::vector<absl::Status> of_ann(3);
  absl::Status of_bob;
  WorkPool pool("test", WorkPool::Priority::kServing, 1, 4);
  pool.Add(
      [&](const absl::Status&) {
        begun.Open();
        go_on.Await();
      },
      "ann");
  begun.Await();
  for (absl::Status& status : of_ann)
    pool.Add([&status](const absl::Status& go) { status = go; }, "ann");
  pool.Add([&of_bob](const absl::Status& go) { of_bob = go; }, "bob");
  EXPECT_EQ(of_ann[2].code(), absl::StatusCode::kResourceExhausted) << of_ann[2];
  go_on.Open();
  pool.Stop();
  EXPECT_FALSE(absl::IsResourceExhausted(of_bob)) << of_bob;
  for (size_t i : {0u, 1u}) EXPECT_FALSE(absl::IsResourceExhausted(of_ann[i])) << of_ann[i];
}

TEST(WorkPoolTest, Stopped_RefusesWhatWaitsAndWhatComes) {
  Gate begun, go_on;
  WorkPool pool("test", WorkPool::Priority::kServing, 1, 10);
  pool.Add([&](const absl::Status&) {
    begun.Open();
    go_on.Await();
  });
  begun.Await();
  absl::Status waiting, late;
  pool.Add([&](const absl::Status& go) {
    waiting = go;
    go_on.Open();
  });
  pool.Stop();
  pool.Add([&](const absl::Status& go) { late = go; });
  EXPECT_EQ(waiting.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace phalanx::coordinator

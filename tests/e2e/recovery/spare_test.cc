// Devices that idle take over from those that are lost: the job stays as wide as it was.
#include <signal.h>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int64_t kSpareSteps = 400;

JobOptions SpareJob(const std::string& name, int32_t spares, const std::string& language) {
  return {.name = name,
          .steps = kSpareSteps,
          .precision = "fp64",
          .vision = "",
          .language = language,
          .batch = 7,
          .spares = spares,
          .output = name};
}

class SpareTest : public testing::Test {
 protected:
  SpareTest() : data_(MakeSmallData()), cluster_({.devices = 2}) {
    cluster_.AddWorker("middle", 2);
    cluster_.AddWorker("there", 2);
  }
  void Train(int32_t spares, const std::string& language) {
    const int64_t whole = cluster_.Submit(Document(data_, SpareJob("whole", 0, language))).id();
    ASSERT_EQ(cluster_.AwaitEnd(whole).phase(), v1::JOB_PHASE_SUCCEEDED);
    job_ = cluster_.Submit(Document(data_, SpareJob("hit", spares, language))).id();
    cluster_.AwaitStep(job_, 5);
  }
  void AwaitEpoch(int64_t epoch) {
    cluster_.Await(job_, [epoch](const v1::JobStatus& status) {
      return status.last_step().epoch() >= epoch && status.last_step().step() > 5;
    });
    // The word of the last rank that is ready may come behind that of the step.
    cluster_.Await(job_, [this](const v1::JobStatus&) {
      return absl::StrContains(MessagesOf(cluster_, job_, "Recovered"), "takes over");
    });
  }
  void ExpectItGoesOn() {
    const v1::JobStatus ended = cluster_.AwaitEnd(job_);
    ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED)
        << ended.reason() << cluster_.CoordinatorLog() << cluster_.WorkerLog();
    ExpectSameCurves(MetricsOf(data_, "hit"), MetricsOf(data_, "whole"), kSpareSteps);
  }

  DataFolder data_;
  Cluster cluster_;
  int64_t job_ = 0;
};

// The device of the first one is whole: it is the spare of the second.
TEST_F(SpareTest, KilledRanks_AreTakenOverOneAfterAnother) {
  Train(/*spares=*/1, "ranks: 4");
  kill(cluster_.Ranks(job_).at(1).pid(), SIGKILL);
  AwaitEpoch(2);
  kill(cluster_.Ranks(job_, "worker-middle").at(2).pid(), SIGKILL);
  ExpectItGoesOn();
  EXPECT_THAT(MessagesOf(cluster_, job_, "Recovered"),
              AllOf(HasSubstr("a spare takes over rank 1"), HasSubstr("a spare takes over rank 2"),
                    Not(HasSubstr("dp 4"))));
  EXPECT_THAT(MessagesOf(cluster_, job_, "Returned"), IsEmpty());
}

TEST_F(SpareTest, NodeThatIsLost_IsTakenOverByAnother) {
  Train(/*spares=*/2, "ranks: 4, tp: 2");
  cluster_.worker().Signal(SIGKILL);
  ExpectItGoesOn();
  EXPECT_THAT(MessagesOf(cluster_, job_, "Recovered"),
              AllOf(HasSubstr("spares take over ranks 0, 1"), Not(HasSubstr("->"))));
}

// There are more lost ranks than spares.
TEST_F(SpareTest, WhatSparesDoNotReachFor_TakesTheNextRung) {
  Train(/*spares=*/1, "ranks: 4");
  cluster_.worker().Signal(SIGKILL);
  ExpectItGoesOn();
  EXPECT_THAT(MessagesOf(cluster_, job_, "Recovered"),
              AllOf(HasSubstr("a spare takes over rank"), HasSubstr("dp 4 -> 3")));
}

}  // namespace
}  // namespace phalanx::e2e

#include "coordinator/runtime/counting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr JobId kJob{1};

class CountingTest : public testing::Test {
 protected:
  void Phase(JobPhase phase, int64_t epoch = 1) {
    counting_.Job({.id = kJob, .phase = phase, .epoch = Epoch{epoch}, .started = now_}, now_);
  }
  // After so many seconds, of which it took `seconds`.
  void Step(int64_t step, double seconds, int64_t after = 1) {
    now_ += absl::Seconds(after);
    counting_.Step(kJob, {.step = step, .seconds = seconds}, now_);
  }
  void Beat(absl::Duration after) {
    now_ += after;
    counting_.Heartbeat({.node = "n", .time = now_});
  }
  static Incident Loss(bool closed, bool standby = false) {
    Incident incident{.number = 1, .standby = standby};
    incident.cause.kind = job::FailureKind::kRankKilled;
    incident[Incident::Phase::kDetected].end = 200'000;
    if (closed) incident[Incident::Phase::kFirstStep].end = 900'000;
    if (closed) incident[Incident::Phase::kSafeAgain].end = 950'000;
    return incident;
  }
  // Whether a scrape has the sample, with its value.
  bool Has(const std::string& sample) {
    return absl::StrContains(metrics_.Text({}), absl::StrCat("\n", sample, "\n"));
  }

  Metrics metrics_;
  Counting counting_{metrics_, absl::Seconds(3)};
  Instant now_ = absl::FromUnixSeconds(1'700'000'000);
};

TEST_F(CountingTest, Goodput_IsTimeOfNewStepsOverTimeOfRunning) {
  for (const JobPhase phase : {JobPhase::kQueued, JobPhase::kStarting, JobPhase::kRunning})
    Phase(phase);
  EXPECT_THAT(metrics_.Text({}), Not(HasSubstr("phalanx_goodput_ratio "))) << "nothing is known";
  Step(1, 1);
  Step(2, 1);
  Step(2, 1);               // done again
  Step(3, 1, /*after=*/5);  // four seconds were lost
  EXPECT_TRUE(Has("phalanx_running_seconds_total 8")) << metrics_.Text({});
  EXPECT_TRUE(Has("phalanx_useful_seconds_total 3"));
  EXPECT_TRUE(Has("phalanx_goodput_ratio 0.375"));
}

TEST_F(CountingTest, TimeInTheQueue_IsNotCounted) {
  Phase(JobPhase::kQueued);
  Phase(JobPhase::kRunning);
  now_ += absl::Seconds(2);
  Phase(JobPhase::kQueued);
  now_ += absl::Hours(1);
  Phase(JobPhase::kRunning, 2);
  Step(1, 1);
  Phase(JobPhase::kSucceeded, 2);
  now_ += absl::Hours(1);
  EXPECT_TRUE(Has("phalanx_running_seconds_total 3")) << metrics_.Text({});
}

TEST_F(CountingTest, Loss_IsDetectedAndRestarted) {
  counting_.Incident(kJob, Loss(false));
  EXPECT_THAT(metrics_.Text({}), Not(HasSubstr("phalanx_restarts_total{")));
  counting_.Incident(kJob, Loss(true, /*standby=*/true));
  counting_.Incident(kJob, Loss(true, /*standby=*/true));
  EXPECT_TRUE(Has("phalanx_restarts_total{action=\"standby\",cause=\"RankKilled\"} 1"))
      << metrics_.Text({});
  EXPECT_TRUE(Has("phalanx_detection_seconds_count{cause=\"RankKilled\"} 1"));
  EXPECT_TRUE(Has("phalanx_detection_seconds_bucket{cause=\"RankKilled\",le=\"0.25\"} 1"));
  EXPECT_TRUE(Has("phalanx_detection_seconds_bucket{cause=\"RankKilled\",le=\"0.1\"} 0"));
}

TEST_F(CountingTest, JobThatIsQueuedAgain_HasTheCauseOfWhatItLost) {
  Phase(JobPhase::kQueued);
  Phase(JobPhase::kRunning);
  counting_.Incident(kJob, Loss(false));
  Phase(JobPhase::kQueued);
  EXPECT_TRUE(Has("phalanx_restarts_total{action=\"queued\",cause=\"RankKilled\"} 1"))
      << metrics_.Text({});
  Phase(JobPhase::kRunning, 2);
  Phase(JobPhase::kQueued, 2);  // somebody has suspended it
  EXPECT_TRUE(Has("phalanx_restarts_total{action=\"queued\",cause=\"\"} 1"));
}

TEST_F(CountingTest, WhatIsFoundInTheStore_WasCountedBefore) {
  counting_.set_recovering(true);
  Phase(JobPhase::kRunning);
  counting_.Incident(kJob, Loss(true));
  counting_.set_recovering(false);
  counting_.Incident(kJob, Loss(true));
  const std::string text = metrics_.Text({});
  EXPECT_THAT(text, Not(HasSubstr("phalanx_restarts_total{")));
  EXPECT_THAT(text, Not(HasSubstr("phalanx_detection_seconds_count")));
  Step(5, 0.5);
  EXPECT_TRUE(Has("phalanx_useful_seconds_total 0.5")) << "it runs on";
}

TEST_F(CountingTest, HeartbeatsFarApart_AreLateUnlessTheNodeWasAway) {
  for (const absl::Duration after : {absl::Seconds(3), absl::Seconds(3), absl::Seconds(7)})
    Beat(after);
  EXPECT_TRUE(Has("phalanx_heartbeats_total 3"));
  EXPECT_TRUE(Has("phalanx_heartbeats_late_total 1")) << metrics_.Text({});
  counting_.Node({.name = "n", .connected = false});
  Beat(absl::Minutes(5));
  EXPECT_TRUE(Has("phalanx_heartbeats_late_total 1"));
}

}  // namespace
}  // namespace phalanx::coordinator

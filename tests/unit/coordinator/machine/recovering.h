// tests/unit/coordinator/machine/recovering.h: a job that trains and loses ranks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {

inline JobRequestPtr AJobThatRecovers(const std::string& name, int32_t devices) {
  JobRequest request = *AJob(name, devices);
  request.recovers = true;
  request.rejoins = true;
  return std::make_shared<const JobRequest>(std::move(request));
}

inline EpochStart Behind(int64_t step) {
  return {.decision = StepDecision{.step = step, .gradient_scale = 0.5}, .updates = step};
}

inline RankQuiet Quiet(int64_t step, int32_t rank = 0) {
  return {.known = Behind(step), .homes = {{.primary = rank, .applied = step}}, .context_ok = true};
}

// Copies that `rank` finds of its own, made in `epoch`, of these steps.
inline RankCopies::Pair Copied(int32_t rank, int64_t epoch, const std::vector<int64_t>& steps) {
  RankCopies::Pair pair{.rank = rank, .epoch = Epoch{epoch}};
  for (const int64_t step : steps) pair.copies.push_back({.start = Behind(step)});
  return pair;
}

inline const RankExited kKilled{.signal = 9};

class RecoveringTest : public testing::Test {
 protected:
  explicit RecoveringTest(CoordinatorOptions options = Harness::Options())
      : h_(std::move(options)) {}

  // Trains on three devices of one node.
  JobId Train() {
    node_ = h_.Open("n", 3);
    const JobId job = h_.Run(node_, AJobThatRecovers("a", 3));
    h_.commands.clear();
    return job;
  }
  // Trains on two nodes: ranks 0 and 1 on `a`, rank 2 on `b`.
  struct TwoNodes {
    SessionId a, b;
    JobId job;
  };
  TwoNodes TrainOnTwoNodes() {
    const SessionId a = h_.Open("a", 2), b = h_.Open("b", 1);
    const JobId job = h_.Submit(AJobThatRecovers("two nodes", 3));
    h_.Prepare(a);
    h_.Prepare(b);
    h_.Ready(a, job, 0, 2);
    h_.Report(b, job, 2, RankReady{});
    EXPECT_EQ(h_.Phase(job), job::JobPhase::kRunning);
    return {a, b, job};
  }
  void Step(JobId job, int64_t step, int64_t epoch) {
    h_.Feed(RankReported{node_, job, Epoch{epoch}, 0,
                         StepReport{.step = step, .epoch = Epoch{epoch}}, Behind(step)});
  }
  // Ranks that are there leave `epoch` behind `step` and are ready in the next one.
  void GoOver(JobId job, const std::vector<int32_t>& ranks, int64_t step, int64_t epoch,
              const std::vector<int32_t>& next) {
    for (const int32_t rank : ranks) h_.Report(node_, job, rank, Quiet(step, rank), epoch);
    for (const int32_t rank : next) h_.Report(node_, job, rank, RankReady{}, epoch + 1);
  }
  const plan::RankList& Lost(JobId job) { return h_.State(job).layout->lost; }
  std::vector<int64_t> BegunBehind() {
    std::vector<int64_t> steps;
    for (const auto& [number, begin] : h_.Commands<BeginEpoch>(node_))
      steps.push_back(begin.start.step());
    return steps;
  }
  std::vector<std::string> Events(JobId job, absl::string_view type) {
    std::vector<std::string> messages;
    for (const JobEvent& event : h_.events[job]) {
      if (event.type == type) messages.push_back(event.message);
    }
    return messages;
  }

  Harness h_;
  SessionId node_;
};

}  // namespace phalanx::coordinator

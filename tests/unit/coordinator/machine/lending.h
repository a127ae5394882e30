// tests/unit/coordinator/machine/lending.h: jobs that lose devices, and a node in reserve.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {

// Jobs of one rank on each of some nodes, and node "s", with two devices in reserve.
class LoanTest : public RecoveringTest {
 protected:
  LoanTest() : LoanTest(PatientOptions()) {}
  explicit LoanTest(CoordinatorOptions options) : RecoveringTest(std::move(options)) {
    spares_ = h_.Open("s", 2);
    Reserve("s", true);
  }

  void Reserve(const NodeName& node, bool reserves) {
    std::optional<ReserveMark> reserve;
    if (reserves) reserve = ReserveMark{.reason = "spares"};
    h_.Feed(ReserveRequested{Token{++token_}, node, std::move(reserve), "ops"});
  }
  void Mark(const NodeName& node, std::optional<NodeMark> mark) {
    h_.Feed(NodeMarkRequested{Token{++token_}, node, std::move(mark), "ops"});
  }
  static JobRequest Borrowing(const std::string& name, int32_t devices,
                              const std::string& text = "text") {
    JobRequest request = *AJob(name, devices, text);
    request.steps = 1000;
    request.recovers = request.rejoins = request.borrows = true;
    return request;
  }
  // Trains on nodes NAME0, NAME1, ... of one device each; node_ is that of rank 0.
  JobId TrainOn(const std::string& name, JobRequest request) {
    for (int32_t rank = 0; rank < request.devices; ++rank)
      sessions_[absl::StrCat(name, rank)] = h_.Open(absl::StrCat(name, rank), 1);
    const int32_t devices = request.devices;
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    for (int32_t rank = 0; rank < devices; ++rank) h_.Prepare(Of(name, rank));
    for (int32_t rank = 0; rank < devices; ++rank) {
      h_.Answer<Assign>(Of(name, rank));
      h_.Report(Of(name, rank), job, rank, RankReady{});
    }
    EXPECT_EQ(h_.Phase(job), job::JobPhase::kRunning);
    node_ = Of(name, 0);
    return job;
  }
  SessionId Of(const std::string& name, int32_t rank) {
    return sessions_.at(absl::StrCat(name, rank));
  }
  // The device of the rank, which is the one of its node, fails, and the others go on without it.
  void Lose(JobId job, const std::string& name, int32_t rank, int32_t ranks, int64_t step,
            int64_t epoch) {
    h_.Report(Of(name, rank), job, rank,
              RankError{.kind = job::FailureKind::kDeviceFailed, .message = "XID 79"}, epoch);
    for (int32_t other = 0; other < ranks; ++other) {
      if (other != rank) h_.Report(Of(name, other), job, other, Quiet(step, other), epoch);
    }
    for (int32_t other = 0; other < ranks; ++other) {
      if (other != rank) h_.Report(Of(name, other), job, other, RankReady{}, epoch + 1);
    }
  }
  // Instead of the two of "s".
  void KeepOneInReserve() {
    h_.Replace("s", 1, 2);
    spares_ = h_.NodeNamed("s").session;
  }
  // Ranks 1 and 2 of three are lost, and one device is in reserve; the plan with it is held.
  JobId LoseTwoWithOneInReserve() {
    KeepOneInReserve();
    const JobId job = TrainOn("n", Borrowing("a", 3));
    Lose(job, "n", 1, 3, 3, 1);
    h_.Report(Of("n", 2), job, 2,
              RankError{.kind = job::FailureKind::kDeviceFailed, .message = "XID 79"}, 2);
    h_.Report(node_, job, 0, Quiet(3), 2);
    h_.Report(node_, job, 0, RankReady{}, 3);
    Step(job, 4, 3);
    h_.plans_held = true;
    h_.Prepare(spares_);
    return job;
  }
  // Of the one order that is held.
  void AnswerPlan(absl::StatusOr<PlanSummary> plan) {
    const uint64_t number = h_.plans.at(0).number;
    h_.plans.clear();
    h_.Feed(PlanComputed{number, std::move(plan)});
    h_.Commit();
  }
  const plan::RankList& Lost(JobId job) { return h_.State(job).layout->lost; }
  std::string Placed(JobId job) { return ToString(*h_.State(job).placement); }
  JobId Holder(const NodeName& node, size_t device = 0) {
    return h_.NodeNamed(node).device_jobs[device];
  }

  std::map<std::string, SessionId> sessions_;
  SessionId spares_;
  uint64_t token_ = 1'000'000;  // beside those of the harness
};

}  // namespace phalanx::coordinator

// What a rank says of itself travels whole: another rank goes on from it.
#include "worker/rank/rank_reports.h"

#include <limits>

#include "core/base/accused.h"
#include "core/job/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::rank {
namespace {

using testing::HasSubstr;

const train::Decision kDecision{.step = 12,
                                .verdict = train::Verdict::kCommitted,
                                .loss = 1.0 / 3,
                                .gradient_norm = 2.0 / 7,
                                .gradient_scale = 0.1 / 3,
                                .counted_tokens = 41,
                                .corrupt_samples = 1,
                                .volume = {.tokens = 43, .images = 5, .sounds = 7}};

TEST(RankReportsTest, Decision_TravelsToTheBit) {
  v1::EpochBegins begins;
  *begins.mutable_decision() = ToProto(kDecision);
  begins.set_updates(11);
  begins.set_skipped_in_a_row(0);
  v1::EpochBegins read;
  ASSERT_TRUE(read.ParseFromString(begins.SerializeAsString()));
  const auto start = StartOf(read);
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->decision.step, 12);
  EXPECT_EQ(start->decision.verdict, train::Verdict::kCommitted);
  EXPECT_EQ(start->decision.loss, kDecision.loss);
  EXPECT_EQ(start->decision.gradient_norm, kDecision.gradient_norm);
  EXPECT_EQ(start->decision.gradient_scale, kDecision.gradient_scale);
  EXPECT_EQ(start->decision.counted_tokens, 41);
  EXPECT_EQ(start->decision.corrupt_samples, 1);
  EXPECT_EQ(start->decision.volume.tokens, 43);
  EXPECT_EQ(start->decision.volume.images, 5);
  EXPECT_EQ(start->decision.volume.sounds, 7);
  EXPECT_EQ(start->counts.updates, 11);
}

TEST(RankReportsTest, NoDecision_IsTheBeginning) {
  const auto start = StartOf(v1::EpochBegins());
  ASSERT_TRUE(start.ok());
  EXPECT_EQ(start->decision.step, 0);
}

TEST(RankReportsTest, DecisionThatNoneCanBe_IsRefusedByItsField) {
  v1::EpochBegins begins;
  *begins.mutable_decision() = ToProto(kDecision);
  begins.mutable_decision()->set_gradient_scale(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(StartOf(begins).status().message(), HasSubstr("gradient_scale"));
  *begins.mutable_decision() = ToProto(kDecision);
  begins.mutable_decision()->set_verdict(v1::StepDecision::VERDICT_UNSPECIFIED);
  EXPECT_THAT(StartOf(begins).status().message(), HasSubstr("VERDICT_UNSPECIFIED"));
  *begins.mutable_decision() = ToProto(kDecision);
  begins.mutable_decision()->set_step(-1);
  EXPECT_THAT(StartOf(begins).status().message(), HasSubstr("step -1"));
}

// It trains meanwhile, and so may whoever could not be reached.
TEST(RankReportsTest, WhatKeptARankFromBeingConnectedBesideTraining_IsNoFaultOfItsOwn) {
  const absl::Status short_of_memory = job::WithKind(
      job::FailureKind::kOutOfMemory, absl::ResourceExhaustedError("no memory for a communicator"));
  for (const absl::Status& met : {short_of_memory, absl::InternalError("Address already in use"),
                                  job::WithKind(job::FailureKind::kVersionMismatch,
                                                absl::FailedPreconditionError("plans"))}) {
    ASSERT_FALSE(IsCollateral(met));
    const absl::Status told = AsCollateral(met);
    EXPECT_TRUE(IsCollateral(told)) << "its process stays";
    EXPECT_EQ(told.message(), met.message());
    EXPECT_EQ(ErrorReport(told).kind(), v1::FAILURE_KIND_PEER_LOST);
    EXPECT_FALSE(ErrorReport(told).has_accused_rank());
  }
  const absl::Status accusing = Accusing(Rank{3}, absl::UnavailableError("refused"));
  EXPECT_EQ(ErrorReport(AsCollateral(accusing)).accused_rank(), 3);
  EXPECT_TRUE(absl::IsCancelled(AsCollateral(absl::CancelledError("told to stop"))));
  EXPECT_TRUE(AsCollateral(absl::OkStatus()).ok());
}

TEST(RankReportsTest, Quiet_SaysWhereEveryHomeStands) {
  const v1::RankQuiet quiet = QuietReport({.decided = kDecision,
                                           .counts = {.updates = 10, .skipped_in_a_row = 2},
                                           .homes = {{.module = 1, .chunk = 0, .applied = 12},
                                                     {.module = 1, .chunk = 1, .applied = 11}},
                                           .begun = 13},
                                          /*epoch=*/3, /*context_ok=*/true);
  EXPECT_EQ(quiet.decision().step(), 12);
  ASSERT_EQ(quiet.homes_size(), 2);
  EXPECT_EQ(quiet.homes(1).chunk(), 1);
  EXPECT_EQ(quiet.homes(1).applied(), 11);
  EXPECT_EQ(quiet.updates(), 10);
  EXPECT_EQ(quiet.skipped_in_a_row(), 2);
  EXPECT_EQ(quiet.layout_epoch(), 3);
  EXPECT_EQ(quiet.begun(), 13);
  EXPECT_TRUE(quiet.context_ok());
  EXPECT_FALSE(QuietReport({}, 0, true).has_decision());
}

TEST(RankReportsTest, LostPeers_AreNoFaultOfTheRank) {
  const absl::Status gone = Accusing(Rank{3}, absl::UnavailableError("rank 3 is gone"));
  EXPECT_TRUE(IsCollateral(gone));
  EXPECT_EQ(ErrorReport(gone).kind(), v1::FAILURE_KIND_PEER_LOST);
  EXPECT_EQ(ErrorReport(gone).accused_rank(), 3);
  EXPECT_TRUE(IsCollateral(absl::AbortedError("a record")));
  EXPECT_FALSE(ErrorReport(absl::AbortedError("a record")).has_accused_rank());
  const absl::Status not_finite =
      job::WithKind(job::FailureKind::kNonFinite, absl::DataLossError("not finite"));
  EXPECT_FALSE(IsCollateral(not_finite));
  EXPECT_EQ(ErrorReport(not_finite).kind(), v1::FAILURE_KIND_NON_FINITE);
}

// The job may go back to the one before, with the same processes.
TEST(RankReportsTest, CheckpointThatIsNotSound_IsNoFaultOfTheRank) {
  for (const auto kind :
       {job::FailureKind::kCheckpointInvalid, job::FailureKind::kCheckpointUnavailable}) {
    const absl::Status damaged = job::WithKind(kind, absl::DataLossError("an entry is damaged"));
    EXPECT_TRUE(IsCollateral(damaged));
    EXPECT_EQ(static_cast<job::FailureKind>(ErrorReport(damaged).kind()), kind);
  }
}

TEST(RankReportsTest, StorageThatIsUnavailable_IsNoPeersLoss) {
  const absl::Status full = job::WithKind(job::FailureKind::kOutputUnavailable,
                                          absl::UnavailableError("no space left on device"));
  EXPECT_FALSE(IsCollateral(full));
  EXPECT_EQ(ErrorReport(full).kind(), v1::FAILURE_KIND_OUTPUT_UNAVAILABLE);
}

}  // namespace
}  // namespace phalanx::rank

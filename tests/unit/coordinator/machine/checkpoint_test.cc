// Checkpoints: told to be published once all parts are written and that is stored.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "gmock/gmock.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

checkpoint::PartFile PartOf(int32_t rank) {
  return {.file = absl::StrCat("rank-0000", rank, ".safetensors"),
          .bytes = 256,
          .header_bytes = 128,
          .entries = 1,
          .digest = absl::StrCat("digest ", rank)};
}

std::vector<std::string> EventsOf(const Harness& h, JobId job, const std::string& type) {
  std::vector<std::string> messages;
  const auto events = h.events.find(job);
  if (events == h.events.end()) return messages;
  for (const JobEvent& event : events->second) {
    if (event.type == type) messages.push_back(event.message);
  }
  return messages;
}

class CheckpointTest : public testing::Test {
 protected:
  // Two ranks on each of two nodes.
  CheckpointTest() : a_(h_.Open("a", 2)), b_(h_.Open("b", 2)) {
    JobRequest request = *AJob("j", 4);
    request.checkpoints = true;
    job_ = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    h_.Prepare(a_);
    h_.Prepare(b_);
    h_.Answer<Assign>(a_);
    h_.Answer<Assign>(b_);
    h_.Ready(a_, job_, 0, 2);
    h_.Ready(b_, job_, 2, 4);
    EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  }
  SessionId NodeOf(int32_t rank) const { return rank < 2 ? a_ : b_; }
  void Write(int32_t rank, int64_t step, int64_t epoch = 1) {
    h_.Report(NodeOf(rank), job_, rank,
              RankCheckpointPart{step, PartOf(rank), rank == 1 ? 1.5 : 0.5}, epoch);
  }
  void WriteAll(int64_t step) {
    for (int32_t rank = 0; rank < 4; ++rank) Write(rank, step);
  }
  std::vector<std::string> Events(const std::string& type) const {
    return EventsOf(h_, job_, type);
  }
  void PassPublishTimeout() {
    const JobPhase before = h_.Phase(job_);
    const absl::Duration timeout = CoordinatorOptions().publish_timeout;
    for (absl::Duration passed; passed < timeout; passed += absl::Seconds(10)) {
      EXPECT_EQ(h_.Phase(job_), before);
      h_.Advance(absl::Seconds(10));
      h_.Feed(HeartbeatReceived{.session = a_});
      h_.Feed(HeartbeatReceived{.session = b_});
    }
  }
  void SucceedAll() {
    for (int32_t rank = 0; rank < 4; ++rank) h_.Report(NodeOf(rank), job_, rank, RankSucceeded{10});
  }

  Harness h_;
  SessionId a_, b_;
  JobId job_;
};

TEST_F(CheckpointTest, AllPartsWritten_OneRankIsToldOnceThatIsStored) {
  for (int32_t rank = 1; rank < 4; ++rank) Write(rank, 3);
  EXPECT_THAT(h_.Commands<PublishCheckpoint>(a_), IsEmpty());
  h_.store_held = true;
  Write(0, 3);
  EXPECT_THAT(h_.Commands<PublishCheckpoint>(a_), IsEmpty());
  h_.Commit();
  ASSERT_THAT(h_.Commands<PublishCheckpoint>(a_), SizeIs(1));
  EXPECT_THAT(h_.Commands<PublishCheckpoint>(b_), IsEmpty());
  const PublishCheckpoint order = h_.Commands<PublishCheckpoint>(a_)[0].second;
  EXPECT_EQ(order.rank, 0);
  EXPECT_EQ(order.step, 3);
  EXPECT_EQ(order.epoch, Epoch{1});
  EXPECT_EQ(order.parts_digest, checkpoint::DigestOf({PartOf(0), PartOf(1), PartOf(2), PartOf(3)}));
}

TEST_F(CheckpointTest, RankWithNothingToWrite_CountsAndDoesNotPublish) {
  h_.Report(a_, job_, 0, RankCheckpointPart{.step = 3});
  h_.Report(a_, job_, 1, RankCheckpointPart{.step = 3});
  Write(2, 3);
  Write(3, 3);
  ASSERT_THAT(h_.Commands<PublishCheckpoint>(b_), SizeIs(1));
  EXPECT_EQ(h_.Commands<PublishCheckpoint>(b_)[0].second.rank, 2);
}

TEST_F(CheckpointTest, Published_IsAnEventOnce) {
  WriteAll(3);
  for (int i = 0; i < 2; ++i) h_.Report(a_, job_, 0, RankCheckpointPublished{3, "/c/step-3", ""});
  EXPECT_THAT(Events("CheckpointPublished"),
              testing::ElementsAre("step 3: /c/step-3, 1.0 KiB in 1.5 s"));
  EXPECT_FALSE(h_.State(job_).publishing.has_value());
  ASSERT_TRUE(h_.views.at(job_)->last_checkpoint.has_value());
  EXPECT_EQ(h_.views.at(job_)->last_checkpoint->path, "/c/step-3");
  // Reports come again when a node is back.
  const size_t records = h_.records.size();
  WriteAll(3);
  EXPECT_EQ(h_.records.size(), records);
  EXPECT_THAT(h_.Commands<PublishCheckpoint>(a_), SizeIs(1));
}

TEST_F(CheckpointTest, PublicationThatFails_IsTold) {
  WriteAll(3);
  h_.Report(a_, job_, 0, RankCheckpointPublished{3, "", "/c: No space left on device"});
  EXPECT_THAT(Events("CheckpointFailed"),
              testing::ElementsAre("step 3: /c: No space left on device"));
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
}

TEST_F(CheckpointTest, SlowRank_HasItsTimeWhileOthersWriteTheNext_AndTheyGoInTheirOrder) {
  for (const int32_t rank : {0, 1, 3}) Write(rank, 3);
  for (const int32_t rank : {0, 1, 3}) Write(rank, 6);
  h_.Report(a_, job_, 0, RankEvent{"CheckpointSkipped", "step 9: one is still being written"});
  EXPECT_THAT(Events("CheckpointSkipped"),
              testing::ElementsAre("rank 0: step 9: one is still being written; of step 6 rank 2 "
                                   "(node b) has not reported its part"));
  Write(2, 3);
  Write(2, 6);
  ASSERT_THAT(h_.Commands<PublishCheckpoint>(a_), SizeIs(1));
  EXPECT_EQ(h_.Commands<PublishCheckpoint>(a_)[0].second.step, 3);
  h_.Report(a_, job_, 0, RankCheckpointPublished{3, "/c/step-3", ""});
  ASSERT_THAT(h_.Commands<PublishCheckpoint>(a_), SizeIs(2));
  EXPECT_EQ(h_.Commands<PublishCheckpoint>(a_)[1].second.step, 6);
  EXPECT_THAT(Events("CheckpointFailed"), IsEmpty());
}

TEST_F(CheckpointTest, PublisherThatSaysNothing_HoldsUpOneCheckpoint) {
  for (const int64_t step : {3, 6, 9}) WriteAll(step);
  ASSERT_THAT(h_.Commands<PublishCheckpoint>(a_), SizeIs(2));
  EXPECT_EQ(h_.Commands<PublishCheckpoint>(a_)[1].second.step, 6);
  EXPECT_THAT(Events("CheckpointFailed"),
              testing::ElementsAre("step 3: rank 0 has not published it, and later ones wait"));
}

TEST_F(CheckpointTest, PartsOfManySteps_AreBounded) {
  for (int64_t step = 1; step <= 9; ++step) Write(1, step);
  EXPECT_THAT(Events("CheckpointFailed"), SizeIs(5));
}

TEST_F(CheckpointTest, PartThatIsMissingWhenTheNextIsWhole_IsNamed) {
  for (const int32_t rank : {0, 1, 3}) Write(rank, 3);
  WriteAll(6);
  EXPECT_THAT(Events("CheckpointFailed"),
              testing::ElementsAre("step 3: rank 2 (node b) has not reported its part"));
  Write(2, 3);  // too late
  ASSERT_THAT(h_.Commands<PublishCheckpoint>(a_), SizeIs(1));
  EXPECT_EQ(h_.Commands<PublishCheckpoint>(a_)[0].second.step, 6);
}

// They may have written them all the same: their reports come when the node is back.
TEST_F(CheckpointTest, PartsOfANodeThatIsAway_AreNotSaidToBeUnwritten) {
  for (int64_t step = 1; step <= 4; ++step) {
    for (const int32_t rank : {0, 1}) Write(rank, step);
  }
  h_.Feed(SessionClosed{.session = b_});
  for (const int32_t rank : {0, 1}) Write(rank, 5);
  EXPECT_THAT(Events("CheckpointFailed"),
              testing::ElementsAre("step 1: ranks 2 (node b, not connected), 3 (node b, not "
                                   "connected) have not reported their parts"));
}

TEST_F(CheckpointTest, PartsOfAnotherEpoch_AreNoPartsOfThisOne) {
  Write(0, 3, /*epoch=*/0);
  for (int32_t rank = 1; rank < 4; ++rank) Write(rank, 3);
  EXPECT_THAT(h_.Commands<PublishCheckpoint>(a_), IsEmpty());
}

TEST_F(CheckpointTest, OrderThatMayBeLost_IsToldAgain) {
  WriteAll(3);
  h_.Restart();
  const SessionId b = h_.Open("b", 2, 1, {{job_, Epoch{1}}}, 100);
  EXPECT_THAT(h_.Commands<PublishCheckpoint>(b), IsEmpty());
  const SessionId a = h_.Open("a", 2, 1, {{job_, Epoch{1}}}, 100);
  ASSERT_THAT(h_.Commands<PublishCheckpoint>(a), SizeIs(1));
  EXPECT_EQ(h_.Commands<PublishCheckpoint>(a)[0].second.step, 3);
  h_.Report(a, job_, 0, RankCheckpointPublished{3, "/c/step-3", ""});
  EXPECT_FALSE(h_.State(job_).publishing.has_value());
}

class ResumeTest : public testing::Test {
 protected:
  ResumeTest() : a_(h_.Open("a", 2)), b_(h_.Open("b", 2)), job_(h_.Submit(AJob("j", 4))) {}
  void Choose(CommandFinished::Choice choice) {
    h_.Answer<PrepareData>(a_, {.data_digest = "data", .choice = std::move(choice)});
  }
  std::vector<std::string> Events(const std::string& type) const {
    return EventsOf(h_, job_, type);
  }

  Harness h_;
  SessionId a_, b_;
  JobId job_;
  const CheckpointSource source_{"/c/step-50", "manifest", 50};
};

TEST_F(ResumeTest, FirstNodeChooses_AndAllRanksAreToldTheSame) {
  EXPECT_TRUE(h_.Commands<PrepareData>(a_)[0].second.choose_checkpoint);
  Choose({.checkpoint = source_, .passed_over = {"step-60: is damaged"}});
  ASSERT_THAT(h_.Commands<PrepareData>(b_), SizeIs(1));
  EXPECT_FALSE(h_.Commands<PrepareData>(b_)[0].second.choose_checkpoint);
  h_.Prepare(b_);
  for (const SessionId node : {a_, b_}) {
    ASSERT_THAT(h_.Commands<Assign>(node), SizeIs(1));
    EXPECT_EQ(h_.Commands<Assign>(node)[0].second.checkpoint, source_);
  }
  EXPECT_EQ(h_.State(job_).checkpoint, source_);
  EXPECT_THAT(Events("CheckpointPassedOver"), testing::ElementsAre("step-60: is damaged"));
  EXPECT_THAT(Events("Resumed"), testing::ElementsAre("behind step 50, from /c/step-50"));
  h_.Restart();
  EXPECT_EQ(h_.State(job_).checkpoint, source_);
}

TEST_F(ResumeTest, NoneToGoOnFrom_IsTold) {
  Choose({});
  h_.Prepare(b_);
  EXPECT_EQ(h_.Commands<Assign>(b_)[0].second.checkpoint, std::nullopt);
  EXPECT_THAT(Events("Resumed"), testing::ElementsAre(HasSubstr("there is no checkpoint")));
}

TEST_F(ResumeTest, CheckpointThatCannotBe_FailsTheJobAsSuch) {
  h_.Answer<PrepareData>(
      a_, {.code = static_cast<int32_t>(absl::StatusCode::kInvalidArgument),
           .message = "no",
           .data_violations = {{"spec.checkpoint.resume_from", "/c", "is of step 60"}},
           .failure_kind = job::FailureKind::kCheckpointInvalid});
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job_).failure->kind, job::FailureKind::kCheckpointInvalid);
  EXPECT_THAT(h_.State(job_).failure->message,
              HasSubstr("spec.checkpoint.resume_from: /c: is of step 60"));
}

TEST_F(CheckpointTest, EndOfTheJob_WaitsForItsLastCheckpoint) {
  WriteAll(10);
  SucceedAll();
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  h_.Report(a_, job_, 0, RankCheckpointPublished{10, "/c/step-10", ""});
  EXPECT_EQ(h_.Phase(job_), JobPhase::kSucceeded);
}

TEST_F(CheckpointTest, LastCheckpointThatLacksThePartOfOneRank_FailsTheJobNamingIt) {
  for (const int32_t rank : {0, 1, 3}) Write(rank, 10);
  SucceedAll();
  PassPublishTimeout();
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job_).failure->kind, job::FailureKind::kCheckpointUnavailable);
  EXPECT_EQ(h_.State(job_).failure->rank, 2);
  EXPECT_EQ(h_.State(job_).failure->node, "b");
}

// What it trained is lost, whoever takes its word that it has succeeded.
TEST_F(CheckpointTest, LastCheckpointThatIsNeverPublished_FailsTheJob) {
  WriteAll(3);
  h_.Report(a_, job_, 0, RankCheckpointPublished{3, "/c/step-3", ""});
  WriteAll(10);
  SucceedAll();
  PassPublishTimeout();
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job_).failure->kind, job::FailureKind::kCheckpointUnavailable);
  EXPECT_EQ(h_.State(job_).failure->message,
            "all ranks have done 10 steps, and there is no checkpoint of the last one: rank 0 has "
            "not published it, and 2m have passed; the last one is /c/step-3");
  EXPECT_THAT(Events("CheckpointFailed"),
              testing::ElementsAre("step 10: rank 0 has not published it, and 2m have passed"));
}

TEST_F(CheckpointTest, LastCheckpointThatCannotBeWritten_FailsTheJobWithWhy) {
  for (int32_t rank = 0; rank < 3; ++rank) Write(rank, 10);
  h_.Report(NodeOf(3), job_, 3, RankEvent{"CheckpointFailed", "step 10: /c: no space left"});
  SucceedAll();
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job_).failure->message,
            "all ranks have done 10 steps, and there is no checkpoint of the last one: rank 3: "
            "step 10: /c: no space left");
}

TEST_F(CheckpointTest, PublisherThatIsGoneWithItsWorker_IsNotWaitedFor) {
  WriteAll(10);
  SucceedAll();
  ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
  h_.Feed(SessionClosed{a_});
  h_.Open("a", 2, 2);  // another process
  EXPECT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_THAT(Events("CheckpointFailed"),
              testing::ElementsAre("step 10: rank 0 has not published it, and the worker of node a "
                                   "was restarted; its ranks died with it"));
}

TEST_F(CheckpointTest, PublisherThatSaysNothing_HasItsTimeOnly) {
  WriteAll(3);
  PassPublishTimeout();
  EXPECT_THAT(Events("CheckpointFailed"),
              testing::ElementsAre("step 3: rank 0 has not published it, and 2m have passed"));
  // The next one has the whole time again.
  WriteAll(6);
  h_.Report(a_, job_, 0, RankCheckpointPublished{6, "/c/step-6", ""});
  WriteAll(9);
  EXPECT_TRUE(h_.State(job_).publishing.has_value());
  PassPublishTimeout();
  EXPECT_THAT(Events("CheckpointFailed"), SizeIs(2));
}

TEST_F(CheckpointTest, CheckpointWithoutParts_HoldsUpNoOther) {
  WriteAll(3);
  for (int32_t rank = 0; rank < 4; ++rank) {
    h_.Report(NodeOf(rank), job_, rank, RankCheckpointPart{.step = 6});
  }
  WriteAll(9);
  ASSERT_THAT(h_.Commands<PublishCheckpoint>(a_), SizeIs(2));
  EXPECT_EQ(h_.Commands<PublishCheckpoint>(a_)[1].second.step, 9);
}

}  // namespace
}  // namespace phalanx::coordinator

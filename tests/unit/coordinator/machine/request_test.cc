// Submits and cancels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::EndsWith;
using ::testing::IsEmpty;

TEST(SubmitTest, Submit_BeforeItIsStored_IsNotAnswered) {
  Harness h;
  h.store_held = true;
  h.Submit(AJob("a", 1));
  EXPECT_THAT(h.answers, IsEmpty());
  EXPECT_THAT(h.views, IsEmpty());
  h.Commit();
  EXPECT_EQ(h.answers.size(), 1u);
  EXPECT_EQ(h.Published(JobId{1}), JobPhase::kQueued);
}

TEST(SubmitTest, Submit_SameRequestIdAgain_GivesTheFirstJob) {
  Harness h;
  const JobId first = h.Submit(AJob("a", 1), "r1");
  EXPECT_EQ(h.Submit(AJob("a", 1), "r1"), first);
  EXPECT_EQ(h.machine().jobs().size(), 1u);
}

TEST(SubmitTest, Submit_SameRequestIdAfterRestart_GivesTheFirstJob) {
  Harness h;
  const JobId first = h.Submit(AJob("a", 1), "r1");
  h.Restart();
  EXPECT_EQ(h.Submit(AJob("a", 1), "r1"), first);
}

TEST(SubmitTest, Submit_SameRequestIdWhileTheFirstIsBeingStored_WaitsForIt) {
  Harness h;
  h.store_held = true;
  h.Submit(AJob("a", 1), "r1");
  h.Submit(AJob("a", 1), "r1");
  EXPECT_THAT(h.answers, IsEmpty());
  h.Commit();
  EXPECT_EQ(h.answers.size(), 2u);
}

// The planner might choose another layout by now, or the cluster might have no place for it.
TEST(SubmitTest, Submit_SameRequestIdOfWhatIsRefusedByNow_GivesTheFirstJob) {
  const absl::Status refusal = absl::InvalidArgumentError("no node has it any more");
  JobRequest laid_out = *AJob("b", 1, "as the planner wrote it");
  laid_out.submitted_digest = "as it was submitted";
  JobRequest otherwise = laid_out;
  otherwise.document.text = "as the planner would write it now";
  JobRequest another = otherwise;
  another.submitted_digest = "something else";
  const auto shared = [](const JobRequest& request) {
    return std::make_shared<const JobRequest>(request);
  };
  Harness h;
  const JobId first = h.Submit(AJob("a", 1), "r1");
  const JobId second = h.Submit(shared(laid_out), "r2");
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(h.Submit(AJob("a", 1), "r1", refusal), first);
    EXPECT_EQ(h.Submit(shared(otherwise), "r2", refusal), second);
    EXPECT_EQ(h.Submit(shared(otherwise), "r2"), second);
    EXPECT_EQ(h.Submit(shared(another), "r2", refusal), JobId{});
    EXPECT_THAT(std::string(h.answers.rbegin()->second.status().message()),
                ::testing::HasSubstr("was given with another document"));
    EXPECT_EQ(h.Submit(AJob("c", 1), "r3", refusal), JobId{});
    EXPECT_EQ(h.answers.rbegin()->second.status(), refusal);
    h.Restart();
  }
  EXPECT_EQ(h.machine().jobs().size(), 2u);
}

TEST(SubmitTest, Submit_NameOfALiveJob_IsRefused) {
  Harness h;
  h.Submit(AJob("a", 1));
  EXPECT_EQ(h.Submit(AJob("a", 1)), JobId{});
  EXPECT_EQ(h.answers.rbegin()->second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(h.answers.rbegin()->second.status().message()),
              EndsWith("; cancel it or choose another name"));
}

TEST(SubmitTest, Submit_NameOfALiveJobOfSomebodyElse_IsNotTheirsToCancel) {
  Harness h;
  const auto of = [](const std::string& owner) {
    JobRequest request = *AJob("a", 1);
    request.owner = owner;
    return std::make_shared<const JobRequest>(request);
  };
  h.Submit(of("alice"));
  EXPECT_EQ(h.Submit(of("bob")), JobId{});
  EXPECT_EQ(h.answers.rbegin()->second.status(),
            absl::AlreadyExistsError("job-1 of alice is named \"a\" and has not ended; choose "
                                     "another name"));
}

TEST(SubmitTest, Submit_NameOfAnEndedJob_IsANewJob) {
  Harness h;
  const JobId first = h.Submit(AJob("a", 1));
  ASSERT_TRUE(h.Cancel(first).ok());
  EXPECT_EQ(h.Submit(AJob("a", 1)), JobId{2});
}

TEST(SubmitTest, Submit_TooManyLiveJobs_IsRefused) {
  CoordinatorOptions options = Harness::Options();
  options.live_jobs_max = 1;
  Harness h(options);
  h.Submit(AJob("a", 1));
  h.Submit(AJob("b", 1));
  EXPECT_EQ(h.answers.rbegin()->second.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(CancelTest, Queued_EndsAtOnce) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1));
  EXPECT_TRUE(h.Cancel(job).ok());
  EXPECT_EQ(h.Published(job), JobPhase::kCancelled);
  EXPECT_TRUE(h.Cancel(job).ok()) << "cancel is idempotent";
}

TEST(CancelTest, Preparing_FreesTheDevicesAtOnce) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 2));
  EXPECT_TRUE(h.Cancel(job).ok());
  EXPECT_EQ(h.Free("n"), 2);
  EXPECT_THAT(h.Commands<StopRanks>(node), IsEmpty());
  // The answer that is still on its way changes nothing.
  h.Prepare(node);
  EXPECT_THAT(h.Commands<Assign>(node), IsEmpty());
}

TEST(CancelTest, Running_StopsTheRanksAndFreesTheDevicesWhenTheyAreGone) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Run(node, AJob("a", 2));
  EXPECT_TRUE(h.Cancel(job).ok());
  EXPECT_EQ(h.Published(job), JobPhase::kCancelled);
  const auto stops = h.Commands<StopRanks>(node);
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].second.grace, absl::Seconds(10));
  EXPECT_EQ(h.Free("n"), 0);
  h.Report(node, job, 0, RankExited{.signal = 15, .expected = true});
  EXPECT_EQ(h.Free("n"), 0);
  h.Report(node, job, 1, RankExited{.signal = 15, .expected = true});
  EXPECT_EQ(h.Free("n"), 2);
  EXPECT_EQ(h.Phase(job), JobPhase::kCancelled);
}

TEST(CancelTest, Failed_IsRefused) {
  Harness h;
  h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 2, "unplannable"));
  EXPECT_EQ(h.Cancel(job).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CancelTest, UnknownJob_IsNotFound) {
  Harness h;
  EXPECT_EQ(h.Cancel(JobId{9}).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace phalanx::coordinator

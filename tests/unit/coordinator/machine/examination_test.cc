// What workers find of their machines: kept as they say it, for people; of a state folder that
// takes no files, for the queue, too.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

std::shared_ptr<const job::NodeExamination> Examination(
    const std::string& found, const std::string& check = "folders",
    job::Finding::Verdict verdict = job::Finding::Verdict::kProblem) {
  return std::make_shared<const job::NodeExamination>(
      job::NodeExamination{.findings = {{.check = check, .verdict = verdict, .found = found}}});
}

class ExaminationTest : public ::testing::Test {
 protected:
  void Say(SessionId session, const std::string& found) {
    h_.Feed(HeartbeatReceived{.session = session, .examination = Examination(found)});
  }
  // Empty: nothing was said.
  std::string Known() {
    const auto& examination = h_.node_views["a"]->examination;
    return examination == nullptr ? "" : examination->findings.at(0).found;
  }

  Harness h_{PatientOptions()};
  const SessionId node_ = h_.Open("a", 2);
};

TEST_F(ExaminationTest, LastOne_IsShown) {
  EXPECT_EQ(Known(), "");
  Say(node_, "first");
  Say(node_, "second");
  h_.Feed(HeartbeatReceived{.session = node_});
  EXPECT_EQ(Known(), "second");
}

TEST_F(ExaminationTest, ProblemOfTheMachine_KeepsNoJobAway) {
  Say(node_, "gone");
  EXPECT_EQ(h_.Free("a"), 2);
  EXPECT_EQ(h_.Phase(h_.Submit(AJob("job", 2))), job::JobPhase::kStarting);
}

TEST_F(ExaminationTest, StateFolderThatTakesNoFiles_KeepsJobsAwayUntilItDoes) {
  const auto say = [this](job::Finding::Verdict verdict) {
    h_.Feed(HeartbeatReceived{.session = node_,
                              .examination = Examination("/state: No space left on device",
                                                         job::kStateFolderCheck, verdict)});
  };
  say(job::Finding::Verdict::kProblem);
  const JobId job = h_.Submit(AJob("job", 2));
  ASSERT_EQ(h_.Phase(job), job::JobPhase::kQueued);
  EXPECT_THAT(h_.Explain(job), ::testing::Contains("node a matches but is unfit: /state: No space "
                                                   "left on device"));
  EXPECT_EQ(h_.node_views["a"]->unfit, "/state: No space left on device");
  h_.Advance(absl::Hours(1));
  EXPECT_EQ(h_.Phase(job), job::JobPhase::kQueued) << "as long as the node says so";
  say(job::Finding::Verdict::kWarning);
  EXPECT_EQ(h_.Phase(job), job::JobPhase::kStarting);
  EXPECT_EQ(h_.node_views["a"]->unfit, "");
}

TEST_F(ExaminationTest, AnotherProcessOfTheWorker_HasSaidNothing) {
  Say(node_, "gone");
  h_.Feed(SessionClosed{node_});
  EXPECT_EQ(Known(), "gone") << "while it is away it is as it was";
  h_.Open("a", 2, 2);
  EXPECT_EQ(Known(), "");
}

TEST_F(ExaminationTest, SessionThatIsNotTheNodes_SaysNothing) {
  Say(SessionId{node_.value + 100}, "gone");
  EXPECT_EQ(Known(), "");
}

}  // namespace
}  // namespace phalanx::coordinator

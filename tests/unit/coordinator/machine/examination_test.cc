// What workers find of their machines: kept as they say it, for people alone.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

std::shared_ptr<const job::NodeExamination> Examination(const std::string& found) {
  return std::make_shared<const job::NodeExamination>(job::NodeExamination{
      .findings = {
          {.check = "folders", .verdict = job::Finding::Verdict::kProblem, .found = found}}});
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

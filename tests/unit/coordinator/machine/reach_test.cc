// Nodes that try whether they reach each other: who is told what, and that it is told once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kPlace[] = "10.0.0.1:40123";

CommandFinished Failed(absl::StatusCode code, const std::string& message) {
  return {.code = static_cast<int32_t>(code), .message = message};
}

class ReachTest : public testing::Test {
 protected:
  ReachTest() : alpha_(h_.Open("alpha", 1)), beta_(h_.Open("beta", 1)) {}

  // The last answer: "reached", a fault, or "CODE: message".
  std::string Answered() const {
    if (h_.reached.empty()) return "no answer";
    const absl::StatusOr<std::string>& last = h_.reached.back();
    if (!last.ok()) return last.status().ToString(absl::StatusToStringMode::kWithNoExtraData);
    return last->empty() ? "reached" : *last;
  }

  Harness h_;
  const SessionId alpha_, beta_;
};

TEST_F(ReachTest, OneListens_ThenTheOtherConnects_ThenItIsAnswered) {
  h_.Reach("beta", "alpha");
  const auto listens = h_.Commands<TryPeer>(alpha_);
  ASSERT_THAT(listens, SizeIs(1));
  EXPECT_EQ(listens[0].second.word, "word");
  EXPECT_EQ(listens[0].second.listens_at, "");
  EXPECT_THAT(h_.Commands<TryPeer>(beta_), IsEmpty()) << "nobody listens yet";
  h_.Answer<TryPeer>(alpha_, {.listens_at = kPlace});
  const auto connects = h_.Commands<TryPeer>(beta_);
  ASSERT_THAT(connects, SizeIs(1));
  EXPECT_EQ(connects[0].second.word, "word");
  EXPECT_EQ(connects[0].second.listens_at, kPlace);
  EXPECT_EQ(Answered(), "no answer");
  h_.Answer<TryPeer>(beta_);
  EXPECT_EQ(Answered(), "reached");
  EXPECT_THAT(h_.records, IsEmpty()) << "nothing of it is stored";
}

TEST_F(ReachTest, OneThatIsNotReached_IsAFault_InWords) {
  h_.Reach("beta", "alpha");
  h_.Answer<TryPeer>(alpha_, {.listens_at = kPlace});
  h_.Answer<TryPeer>(beta_, Failed(absl::StatusCode::kUnavailable, "Connection refused"));
  EXPECT_EQ(Answered(), "beta does not reach alpha at 10.0.0.1:40123: Connection refused");
}

TEST_F(ReachTest, OneThatCannotListen_IsAFault_AndNobodyConnects) {
  h_.Reach("beta", "alpha");
  h_.Answer<TryPeer>(alpha_, Failed(absl::StatusCode::kUnavailable, "cannot listen on 10.9.9.9:0"));
  EXPECT_EQ(Answered(), "alpha: cannot listen on 10.9.9.9:0");
  EXPECT_THAT(h_.Commands<TryPeer>(beta_), IsEmpty());
}

TEST_F(ReachTest, WorkerOfTheReleaseBefore_TellsNothing) {
  h_.Reach("beta", "alpha");
  h_.Answer<TryPeer>(alpha_, Failed(absl::StatusCode::kUnimplemented, "unknown"));
  EXPECT_EQ(Answered(),
            "FAILED_PRECONDITION: the worker of node alpha is of a release that tries no "
            "connections; upgrade it");
}

TEST_F(ReachTest, WorkerThatTriesEnoughAlready_OrSaysNotWhere_TellsNothing) {
  h_.Reach("beta", "alpha");
  h_.Answer<TryPeer>(alpha_, Failed(absl::StatusCode::kResourceExhausted, "try again"));
  EXPECT_EQ(Answered(), "FAILED_PRECONDITION: node alpha: try again");
  h_.commands.clear();
  h_.Reach("beta", "alpha");
  h_.Answer<TryPeer>(alpha_, {.listens_at = "here"});
  EXPECT_EQ(Answered(), "FAILED_PRECONDITION: node alpha does not say where it listens");
  EXPECT_THAT(h_.Commands<TryPeer>(beta_), IsEmpty());
}

TEST_F(ReachTest, NodesThatAreNotThere_OrOneAndTheSame_AreRefused) {
  h_.Reach("beta", "gamma");
  EXPECT_EQ(Answered(),
            "NOT_FOUND: there is no node \"gamma\"; phalanx nodes lists those there are");
  h_.Reach("beta", "beta");
  EXPECT_EQ(Answered(), "INVALID_ARGUMENT: to: beta: must be another node than from");
  h_.Feed(SessionClosed{alpha_});
  h_.Reach("alpha", "beta");
  EXPECT_EQ(Answered(), "FAILED_PRECONDITION: node alpha is not connected");
  EXPECT_THAT(h_.commands, IsEmpty());
}

TEST_F(ReachTest, NodeThatLeaves_IsAnsweredFor_AndNotAskedAgain) {
  h_.Reach("beta", "alpha");
  h_.Feed(SessionClosed{alpha_});
  EXPECT_EQ(Answered(), "FAILED_PRECONDITION: node alpha disconnected before it answered");
  h_.Clear();
  const SessionId again = h_.Open("alpha", 1);
  EXPECT_THAT(h_.Commands<TryPeer>(again), IsEmpty());
  h_.Reach("beta", "alpha");
  h_.Feed(SessionClosed{beta_});
  EXPECT_THAT(h_.reached, SizeIs(1)) << "it is alpha's turn";
  h_.Answer<TryPeer>(again, {.listens_at = kPlace});
  EXPECT_EQ(Answered(), "FAILED_PRECONDITION: node beta is not connected");
  EXPECT_THAT(h_.reached, SizeIs(2));
}

TEST_F(ReachTest, NodeThatDoesNotAnswer_IsAwaitedForAWhileOnly) {
  Harness h(PatientOptions());
  const SessionId alpha = h.Open("alpha", 1);
  const SessionId beta = h.Open("beta", 1);
  h.Reach("beta", "alpha");
  h.Advance(absl::Seconds(14));
  EXPECT_THAT(h.reached, IsEmpty());
  h.Advance(absl::Seconds(1));
  ASSERT_THAT(h.reached, SizeIs(1));
  EXPECT_EQ(h.reached[0].status(),
            absl::FailedPreconditionError("node alpha has not answered within 15s"));
  h.Answer<TryPeer>(alpha, {.listens_at = kPlace});
  EXPECT_THAT(h.Commands<TryPeer>(beta), IsEmpty()) << "nobody waits any more";
  h.Reach("beta", "alpha");
  h.Answer<TryPeer>(alpha, {.listens_at = kPlace});
  h.Advance(absl::Seconds(15));
  ASSERT_THAT(h.reached, SizeIs(2));
  EXPECT_EQ(h.reached[1].status(),
            absl::FailedPreconditionError("node beta has not answered within 15s"));
}

TEST_F(ReachTest, NodeThatListensElsewhereThanItSays_SendsNobodyThere) {
  for (const char* address : {"10.0.0.2", "fd00::1"}) {
    h_.Feed(SessionOpened{
        alpha_,
        WorkerHello{
            .node = "alpha", .incarnation = Incarnation{1}, .devices = 1, .address = address}});
    h_.Reach("beta", "alpha");
    h_.Answer<TryPeer>(alpha_, {.listens_at = kPlace});
    EXPECT_EQ(
        Answered(),
        "FAILED_PRECONDITION: node alpha says that it listens at 10.0.0.1:40123, which is not "
        "its --address");
    EXPECT_THAT(h_.Commands<TryPeer>(beta_), IsEmpty());
    h_.commands.clear();
  }
  // The same in other words; a name is not looked up.
  for (const auto& [address, place] : std::vector<std::pair<std::string, std::string>>{
           {"10.0.0.1", kPlace}, {"fd00:0::1", "[fd00::1]:40123"}, {"alpha.lab", kPlace}}) {
    h_.Feed(SessionOpened{
        alpha_,
        WorkerHello{
            .node = "alpha", .incarnation = Incarnation{1}, .devices = 1, .address = address}});
    h_.Reach("beta", "alpha");
    h_.Answer<TryPeer>(alpha_, {.listens_at = place});
    EXPECT_THAT(h_.Commands<TryPeer>(beta_), SizeIs(1)) << address;
    h_.Clear();
  }
}

TEST_F(ReachTest, MoreAtOneTimeThanItsMost_AreRefused_UntilOneIsDone) {
  for (int i = 0; i < 16; ++i) h_.Reach("beta", "alpha");
  EXPECT_EQ(Answered(), "no answer");
  h_.Reach("beta", "alpha");
  EXPECT_EQ(Answered(),
            "RESOURCE_EXHAUSTED: 16 pairs of nodes are being tried; try again when they are done");
  h_.Answer<TryPeer>(alpha_, Failed(absl::StatusCode::kUnavailable, "no"));
  h_.reached.clear();
  h_.Reach("beta", "alpha");
  EXPECT_EQ(Answered(), "no answer");
}

}  // namespace
}  // namespace phalanx::coordinator

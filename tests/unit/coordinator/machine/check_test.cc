// What becomes of devices that fail a check.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::CheckVerdict;
using job::JobPhase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CheckTest : public testing::Test {
 protected:
  // Of the node's devices in order, all at once.
  void Say(SessionId session, const std::vector<CheckVerdict>& verdicts) {
    auto check = std::make_shared<job::NodeCheck>();
    check->number = ++checks_;
    for (const CheckVerdict verdict : verdicts) {
      check->devices.push_back({.device = static_cast<int32_t>(check->devices.size()),
                                .verdict = verdict,
                                .reason = verdict == CheckVerdict::kFailed ? "wrong" : "",
                                .time = absl::FromUnixSeconds(static_cast<int64_t>(checks_))});
    }
    said_ = check;
    Repeat(session);
  }
  // What was said last.
  void Repeat(SessionId session) { h_.Feed(HeartbeatReceived{.session = session, .check = said_}); }
  void Restart() {
    h_.node_views.clear();
    h_.Restart();
  }
  void Uncordon(const NodeName& node) {
    h_.Feed(NodeMarkRequested{Token{1000}, node, std::nullopt, "ops", false});
  }

  Harness h_{PatientOptions()};
  const SessionId node_ = h_.Open("a", 2);
  uint64_t checks_ = 0;
  std::shared_ptr<const job::NodeCheck> said_;
};

TEST_F(CheckTest, DeviceThatFails_GetsNoJob_UntilItPasses) {
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  EXPECT_EQ(h_.Free("a"), 1);
  EXPECT_THAT(h_.node_views["a"]->failed_devices, ElementsAre(0));
  EXPECT_EQ(h_.node_views["a"]->check->devices[0].reason, "wrong");
  const JobId job = h_.Submit(AJob("job", 2));
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.Explain(job),
              Contains("device 0 of node a failed its check (phalanx describe node a); it takes "
                       "jobs once it passes one, or after phalanx uncordon a"));
  Say(node_, {CheckVerdict::kSlow, CheckVerdict::kPassed});
  EXPECT_THAT(h_.node_views["a"]->failed_devices, IsEmpty());
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
}

TEST_F(CheckTest, OperatorWhoUncordons_GivesItAnotherChance_UntilTheNextCheck) {
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  Uncordon("a");
  EXPECT_EQ(h_.Free("a"), 2);
  Repeat(node_);  // of a new session, say
  EXPECT_EQ(h_.Free("a"), 2) << "it is no other check";
  EXPECT_EQ(h_.node_views["a"]->check->devices[0].verdict, CheckVerdict::kFailed);
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  EXPECT_EQ(h_.Free("a"), 1);
}

TEST_F(CheckTest, NewProcessOfANode_DoesNotMakeItsDevicesBetter) {
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  const SessionId again = h_.Replace("a", 2, 2);
  EXPECT_EQ(h_.Free("a"), 1);
  Say(again, {CheckVerdict::kPassed, CheckVerdict::kPassed});
  EXPECT_EQ(h_.Free("a"), 2);
}

TEST_F(CheckTest, NewProcessThatHasCheckedOthersOnly_LeavesTheReasonOfADeviceThatIsKeptOut) {
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  auto check = std::make_shared<job::NodeCheck>();
  check->devices.push_back({.device = 1, .verdict = CheckVerdict::kSlow});
  h_.Feed(HeartbeatReceived{.session = h_.Replace("a", 2, 2), .check = check});
  EXPECT_THAT(h_.node_views["a"]->failed_devices, ElementsAre(0));
  const std::vector<job::DeviceCheck>& known = h_.node_views["a"]->check->devices;
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].reason, "wrong");
  EXPECT_EQ(known[1].verdict, CheckVerdict::kSlow);
}

TEST_F(CheckTest, CheckWithoutAVerdict_LiftsNothing) {
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  Say(node_, {CheckVerdict::kNone, CheckVerdict::kPassed});
  EXPECT_EQ(h_.Free("a"), 1);
  EXPECT_EQ(h_.node_views["a"]->check->devices.at(0).reason, "wrong");
}

TEST_F(CheckTest, DeviceThatKeepsFailing_IsToldOnce) {
  const JobId job = h_.Run(node_, AJob("job", 1));
  for (int i = 0; i < 3; ++i) Say(node_, {CheckVerdict::kPassed, CheckVerdict::kFailed});
  EXPECT_EQ(std::count_if(h_.events[job].begin(), h_.events[job].end(),
                          [](const JobEvent& event) { return event.type == "DeviceCheckFailed"; }),
            1);
}

TEST_F(CheckTest, CoordinatorThatStartsAgain_HearsOfItBeforeItPlacesAnything) {
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  const JobId job = h_.Submit(AJob("job", 2));
  h_.Commit();
  h_.Restart();
  WorkerHello hello{.node = "a", .incarnation = Incarnation{1}, .devices = 2, .check = said_};
  h_.Feed(SessionOpened{SessionId{900}, hello});
  EXPECT_EQ(h_.Free("a"), 1);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
}

TEST_F(CheckTest, CoordinatorThatStartsAgain_KnowsTheVerdictBeforeTheWorkerSpeaks) {
  Say(node_, {CheckVerdict::kPassed, CheckVerdict::kFailed, CheckVerdict::kPassed});
  Restart();
  ASSERT_TRUE(h_.node_views.contains("a"));
  EXPECT_FALSE(h_.node_views["a"]->connected);
  EXPECT_THAT(h_.node_views["a"]->failed_devices, ElementsAre(1));
  ASSERT_EQ(h_.node_views["a"]->check->devices.size(), 1u) << "of others nothing is wrong";
  EXPECT_EQ(h_.node_views["a"]->check->devices[0].reason, "wrong");
}

TEST_F(CheckTest, WorkerAndCoordinatorThatStartAgain_KeepADeviceOut_UntilItPasses) {
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  Restart();
  const SessionId again = h_.Open("a", 2, 2);
  EXPECT_EQ(h_.Free("a"), 1);
  EXPECT_EQ(h_.node_views["a"]->check->devices[0].reason, "wrong");
  Say(again, {CheckVerdict::kPassed, CheckVerdict::kPassed});
  EXPECT_EQ(h_.Free("a"), 2);
  Restart();
  EXPECT_FALSE(h_.node_views.contains("a")) << "nothing is wrong with it";
}

TEST_F(CheckTest, DeviceThatIsLetBack_IsSoAfterARestart_UntilTheNextCheck) {
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kFailed});
  Uncordon("a");
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kFailed});
  Uncordon("a");
  Restart();
  EXPECT_THAT(h_.node_views["a"]->failed_devices, IsEmpty());
  EXPECT_EQ(h_.node_views["a"]->check->devices[0].reason, "wrong");
  WorkerHello hello{.node = "a", .incarnation = Incarnation{1}, .devices = 2, .check = said_};
  h_.Feed(SessionOpened{SessionId{900}, hello});
  EXPECT_EQ(h_.Free("a"), 2) << "it is no other check";
  Say(SessionId{900}, {CheckVerdict::kPassed, CheckVerdict::kFailed});
  EXPECT_EQ(h_.Free("a"), 1);
}

TEST_F(CheckTest, VerdictsAreStored_WhenTheyChange_AndNotWithEachCheck) {
  for (int i = 0; i < 3; ++i) Say(node_, {CheckVerdict::kPassed, CheckVerdict::kPassed});
  EXPECT_EQ(h_.records.size(), 0u);
  for (int i = 0; i < 3; ++i) Say(node_, {CheckVerdict::kSlow, CheckVerdict::kFailed});
  EXPECT_EQ(h_.records.size(), 1u);
  for (int i = 0; i < 3; ++i) Say(node_, {CheckVerdict::kPassed, CheckVerdict::kFailed});
  EXPECT_EQ(h_.records.size(), 2u);
  Uncordon("a");
  EXPECT_EQ(h_.records.size(), 3u);
}

TEST_F(CheckTest, MarkAndVerdict_AreStoredTogether) {
  h_.Feed(NodeMarkRequested{Token{1001}, "a", NodeMark{.reason = "new fan"}, "ops", false});
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  Restart();
  EXPECT_EQ(h_.node_views["a"]->mark->reason, "new fan");
  EXPECT_THAT(h_.node_views["a"]->failed_devices, ElementsAre(0));
  const SessionId again = h_.Open("a", 2, 2);
  Say(again, {CheckVerdict::kPassed, CheckVerdict::kPassed});
  Restart();
  EXPECT_EQ(h_.node_views["a"]->mark->reason, "new fan");
  EXPECT_THAT(h_.node_views["a"]->failed_devices, IsEmpty());
}

TEST_F(CheckTest, MarkReserveAndVerdict_OutlastEachOther) {
  h_.Feed(ReserveRequested{Token{1001}, "a", ReserveMark{.reason = "spares"}, "ops"});
  Say(node_, {CheckVerdict::kFailed, CheckVerdict::kPassed});
  h_.Feed(NodeMarkRequested{Token{1002}, "a", NodeMark{.reason = "new fan"}, "ops", false});
  Restart();
  EXPECT_EQ(h_.node_views["a"]->mark->reason, "new fan");
  EXPECT_EQ(h_.node_views["a"]->reserve->reason, "spares");
  EXPECT_THAT(h_.node_views["a"]->failed_devices, ElementsAre(0));
  h_.Feed(ReserveRequested{Token{1003}, "a", std::nullopt, "ops"});
  Restart();
  EXPECT_EQ(h_.node_views["a"]->mark->reason, "new fan");
  EXPECT_FALSE(h_.node_views["a"]->reserve.has_value());
  EXPECT_THAT(h_.node_views["a"]->failed_devices, ElementsAre(0));
  h_.Feed(ReserveRequested{Token{1004}, "a", ReserveMark{.reason = "spares"}, "ops"});
  Uncordon("a");
  Restart();
  EXPECT_FALSE(h_.node_views["a"]->mark.has_value());
  EXPECT_EQ(h_.node_views["a"]->reserve->reason, "spares");
  EXPECT_THAT(h_.node_views["a"]->failed_devices, IsEmpty()) << "it is let back";
  h_.Open("a", 2, 2);
  EXPECT_EQ(h_.machine().nodes().at("a").FreeDevices(), 2);
  h_.Submit(AJob("j", 2));
  EXPECT_EQ(h_.Free("a"), 2) << "they are in reserve";
}

TEST_F(CheckTest, NodeThatIsForgotten_IsSoByTheStore) {
  Harness h;
  h.Feed(HeartbeatReceived{.session = h.Open("a", 1),
                           .check = std::make_shared<job::NodeCheck>(job::NodeCheck{
                               .devices = {{.device = 0, .verdict = CheckVerdict::kFailed}}})});
  h.Restart();
  EXPECT_TRUE(h.node_views.contains("a"));
  h.Advance(absl::Minutes(62));
  EXPECT_FALSE(h.machine().nodes().contains("a"));
  h.Restart();
  EXPECT_FALSE(h.machine().nodes().contains("a"));
  h.Open("a", 1);
  EXPECT_EQ(h.Free("a"), 1);
}

TEST_F(CheckTest, WorkerThatSaysNothingOfChecks_IsServedAsEver) {
  h_.Feed(HeartbeatReceived{.session = node_});
  EXPECT_EQ(h_.Free("a"), 2);
  EXPECT_EQ(h_.node_views["a"]->check, nullptr);
  EXPECT_EQ(h_.Phase(h_.Submit(AJob("job", 2))), JobPhase::kStarting);
}

TEST_F(CheckTest, DevicesThatTheNodeHasNot_ArePassedOver) {
  auto check = std::make_shared<job::NodeCheck>();
  for (const int32_t device : {-1, 2, 1 << 30})
    check->devices.push_back({.device = device, .verdict = CheckVerdict::kFailed});
  h_.Feed(HeartbeatReceived{.session = node_, .check = check});
  EXPECT_EQ(h_.Free("a"), 2);
  EXPECT_THAT(h_.node_views["a"]->failed_devices, IsEmpty());
}

TEST_F(CheckTest, JobsOfTheNode_AreTold) {
  Harness& h = h_;
  const JobId job = h.Run(node_, AJob("job", 1));
  Say(node_, {CheckVerdict::kPassed, CheckVerdict::kFailed});
  Say(node_, {CheckVerdict::kPassed, CheckVerdict::kPassed});
  std::vector<std::string> told;
  for (const JobEvent& event : h.events[job]) {
    if (event.type.starts_with("DeviceCheck")) told.push_back(event.type + ": " + event.message);
  }
  EXPECT_THAT(
      told, ElementsAre(
                "DeviceCheckFailed: node a: device 1 failed its check and gets nothing new: wrong",
                "DeviceCheckPassed: node a: device 1 has passed its check again"));
}

}  // namespace
}  // namespace phalanx::coordinator

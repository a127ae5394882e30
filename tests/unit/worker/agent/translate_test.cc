#include "worker/agent/translate.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

TEST(Utf8Test, Text_StaysAsItIs) {
  EXPECT_EQ(Utf8Of("plain, \xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x98\x80", 100),
            "plain, \xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x98\x80");
}

TEST(Utf8Test, BytesThatAreNoText_BecomeQuestionMarks) {
  EXPECT_EQ(Utf8Of("a\xFF\x80z", 100), "a??z");
  EXPECT_EQ(Utf8Of("\xC0\xAF", 100), "??");            // overlong
  EXPECT_EQ(Utf8Of("\xED\xA0\x80", 100), "???");       // surrogate
  EXPECT_EQ(Utf8Of("\xF4\x90\x80\x80", 100), "????");  // beyond the last code point
  EXPECT_EQ(Utf8Of("\xE2\x82", 100), "??");            // cut off
}

TEST(Utf8Test, Cut_InsideACharacter_LeavesText) { EXPECT_EQ(Utf8Of("ab\xE2\x82\xAC", 4), "ab??"); }

TEST(TranslateTest, Assign_TellsPlacesWithoutWork) {
  v1::OpenSessionResponse response;
  v1::Layout& layout = *response.mutable_command()->mutable_assign()->mutable_layout();
  layout.add_lost(3);
  layout.add_idle(1);
  layout.add_idle(7);
  const std::optional<Event> event = EventOf(SessionNumber{1}, response);
  const auto& command = std::get<CommandReceived>(event.value()).command;
  EXPECT_THAT(std::get<AssignCommand>(command).without_work, testing::ElementsAre(1, 3, 7));
}

TEST(TranslateTest, Assign_TellsWhichPlacesGiveCopies) {
  v1::OpenSessionResponse response;
  response.mutable_command()->mutable_assign()->add_keepers(4);
  const std::optional<Event> event = EventOf(SessionNumber{1}, response);
  const auto& command = std::get<CommandReceived>(event.value()).command;
  EXPECT_THAT(std::get<AssignCommand>(command).keepers, testing::ElementsAre(4));
}

TEST(TranslateTest, Report_CarriesTheRankThatTheDaemonKnows_NotTheOneWritten) {
  v1::RankReport claimed;
  claimed.set_job(99);
  claimed.set_rank(5);
  claimed.mutable_ready();
  const v1::RankReport report =
      MessageOf(SendReport{JobId{7}, Epoch{2}, 1, claimed.SerializeAsString()}).rank_report();
  EXPECT_EQ(report.job(), 7);
  EXPECT_EQ(report.epoch(), 2);
  EXPECT_EQ(report.rank(), 1);
  EXPECT_TRUE(report.has_ready());
}

TEST(TranslateTest, Heartbeat_SaysWhatChecksFound_WhereThatIsNew) {
  EXPECT_FALSE(MessageOf(SendHeartbeat{}, {}).heartbeat().has_check());
  auto check = std::make_shared<job::NodeCheck>();
  check->devices.push_back({.device = 2, .verdict = job::CheckVerdict::kFailed, .reason = "wrong"});
  const v1::OpenSessionRequest message = MessageOf(SendHeartbeat{.check = check}, {});
  ASSERT_EQ(message.heartbeat().check().devices_size(), 1);
  EXPECT_EQ(message.heartbeat().check().devices(0).device(), 2);
  EXPECT_EQ(message.heartbeat().check().devices(0).verdict(), v1::DeviceCheck::VERDICT_FAILED);
  EXPECT_EQ(message.heartbeat().check().devices(0).reason(), "wrong");
}

TEST(TranslateTest, Examination_IsText_WithinItsBounds) {
  using Verdict = job::Finding::Verdict;
  const absl::Time sent = absl::FromUnixMillis(1'700'000'000'250);
  std::vector<job::Finding> findings = {
      {.check = "folders", .verdict = Verdict::kProblem, .found = "/\xFF: gone", .next = "mount"},
      {.check = "limits", .found = std::string(1 << 20, 'x')}};
  findings.resize(100, {.check = "more"});
  const v1::MachineExamination message = MessageOf(findings, sent, absl::Milliseconds(500));
  ASSERT_EQ(message.findings_size(), job::kFindingsMax);
  EXPECT_EQ(message.findings(0).check(), "folders");
  EXPECT_EQ(message.findings(0).verdict(), v1::MachineFinding::VERDICT_PROBLEM);
  EXPECT_EQ(message.findings(0).found(), "/?: gone");
  EXPECT_EQ(message.findings(0).next(), "mount");
  EXPECT_LE(message.findings(1).found().size(), job::kFoundBytesMax);
  EXPECT_EQ(message.sent().seconds(), 1'700'000'000);
  EXPECT_EQ(message.sent().nanos(), 250'000'000);
  EXPECT_EQ(message.round_trip_seconds(), 0.5);
}

TEST(TranslateTest, CommandResult_SaysWhatSamplesAreLike_WhereThatIsKnown) {
  DataOutcome data{.digest = "d"};
  const auto result = [&data] {
    return MessageOf(SendCommandResult{.command_number = 3,
                                       .data = std::make_shared<const DataOutcome>(data)})
        .command_result();
  };
  EXPECT_FALSE(result().has_data_shape());
  data.shape = job::DataShape{.items = 3.5, .labelled_share = 0.25};
  EXPECT_EQ(result().data_shape().items(), 3.5);
  EXPECT_EQ(result().data_shape().labelled_share(), 0.25);
}

TEST(TranslateTest, Heartbeat_SaysHowWarmDevicesAre) {
  const std::vector<int32_t> degrees = {41, 0, 63};
  const v1::OpenSessionRequest message = MessageOf(SendHeartbeat{}, {}, degrees);
  EXPECT_THAT(message.heartbeat().device_temperatures(), ::testing::ElementsAre(41, 0, 63));
}

TEST(TranslateTest, Heartbeat_SaysHowMuchMemoryIsInUse) {
  const std::vector<int64_t> bytes = {int64_t{5} << 30, -1};
  const v1::OpenSessionRequest message = MessageOf(SendHeartbeat{}, {}, {}, bytes);
  EXPECT_THAT(message.heartbeat().device_used_memory(),
              ::testing::ElementsAre(int64_t{5} << 30, -1));
}

TEST(TranslateTest, Heartbeat_SaysHowLongRanksWork) {
  const v1::OpenSessionRequest message =
      MessageOf(SendHeartbeat{.progress = {{JobId{7}, Epoch{2}, 30, {{3, 0.25, 77, 0.5, 78}}},
                                           {JobId{8}, Epoch{1}}}},
                {});
  ASSERT_EQ(message.heartbeat().progress_size(), 2);
  ASSERT_EQ(message.heartbeat().progress(0).work_size(), 1);
  EXPECT_EQ(message.heartbeat().progress(0).work(0).rank(), 3);
  EXPECT_EQ(message.heartbeat().progress(0).work(0).seconds(), 0.25);
  EXPECT_EQ(message.heartbeat().progress(0).work(0).equal(), 77u);
  EXPECT_EQ(message.heartbeat().progress(0).work(0).seconds_per_gflop(), 0.5);
  EXPECT_EQ(message.heartbeat().progress(0).work(0).like(), 78u);
  EXPECT_EQ(message.heartbeat().progress(1).work_size(), 0);
}

TEST(TranslateTest, Heartbeat_SaysWhatWaitsBehindWhom) {
  const v1::OpenSessionRequest message =
      MessageOf(SendHeartbeat{}, {{JobId{1}, 40, JobId{}}, {JobId{2}, 50, JobId{1}}});
  ASSERT_EQ(message.heartbeat().preparing_size(), 2);
  EXPECT_EQ(message.heartbeat().preparing(0).job(), 1);
  EXPECT_EQ(message.heartbeat().preparing(0).bytes_read(), 40);
  EXPECT_EQ(message.heartbeat().preparing(0).behind(), 0);
  EXPECT_EQ(message.heartbeat().preparing(1).behind(), 1);
}

TEST(TranslateTest, Heartbeat_SaysForHowLongRanksWait) {
  const v1::OpenSessionRequest message =
      MessageOf(SendHeartbeat{.progress = {{.job = JobId{7},
                                            .epoch = Epoch{2},
                                            .step = 5,
                                            .waits = absl::Milliseconds(1'500)}}},
                {});
  ASSERT_EQ(message.heartbeat().progress_size(), 1);
  EXPECT_EQ(message.heartbeat().progress(0).step(), 5);
  EXPECT_EQ(message.heartbeat().progress(0).waits_seconds(), 1.5);
}

TEST(TranslateTest, Fault_IsTheErrorOfItsRank) {
  const v1::RankReport report =
      MessageOf(SendReport{JobId{7}, Epoch{2}, 1, RankFault{"it said nothing"}}).rank_report();
  EXPECT_TRUE(MessageOf(SendReport{JobId{7}, Epoch{2}, 1, RankNeverRan{}})
                  .rank_report()
                  .quiet()
                  .context_ok());
  EXPECT_EQ(report.error().message(), "it said nothing");
  EXPECT_EQ(report.error().kind(), v1::FAILURE_KIND_RANK_ERROR);
  EXPECT_EQ(report.rank(), 1);
}

TEST(TranslateTest, Stop_WithoutAGrace_HasTheDefault) {
  v1::OpenSessionResponse response;
  response.mutable_command()->set_command_number(4);
  response.mutable_command()->mutable_stop()->set_job(7);
  const auto event = EventOf(SessionNumber{1}, response);
  ASSERT_TRUE(event.has_value());
  const auto& stop = std::get<StopCommand>(std::get<CommandReceived>(*event).command);
  EXPECT_EQ(stop.grace, absl::Seconds(10));
  response.mutable_command()->mutable_stop()->mutable_grace();
  const auto at_once = EventOf(SessionNumber{1}, response);
  EXPECT_EQ(std::get<StopCommand>(std::get<CommandReceived>(*at_once).command).grace,
            absl::ZeroDuration());
}

TEST(TranslateTest, Wish_IsPassedOnAsItCame) {
  v1::OpenSessionResponse response;
  response.mutable_command()->set_command_number(4);
  response.mutable_command()->mutable_wish()->set_job(7);
  response.mutable_command()->mutable_wish()->set_epoch(2);
  const auto event = EventOf(SessionNumber{1}, response);
  ASSERT_TRUE(event.has_value());
  const auto& wish = std::get<WishCommand>(std::get<CommandReceived>(*event).command);
  EXPECT_EQ(wish.job, JobId{7});
  EXPECT_EQ(wish.epoch, Epoch{2});
  EXPECT_EQ(wish.payload, response.command().wish().SerializeAsString());
  response.mutable_command()->mutable_assign()->set_writes_checkpoints(true);
  const auto assigned = EventOf(SessionNumber{1}, response);
  EXPECT_TRUE(
      std::get<AssignCommand>(std::get<CommandReceived>(*assigned).command).writes_checkpoints);
}

TEST(TranslateTest, PrepareStandby_IsPassedOnAsItCame) {
  v1::OpenSessionResponse response;
  response.mutable_command()->set_command_number(4);
  v1::PrepareStandby& sent = *response.mutable_command()->mutable_prepare_standby();
  sent.set_job(7);
  sent.set_epoch(2);
  sent.set_set("standby/1");
  const std::string payload = sent.SerializeAsString();
  const auto event = EventOf(SessionNumber{1}, response);
  ASSERT_TRUE(event.has_value());
  const auto& order = std::get<PrepareStandbyCommand>(std::get<CommandReceived>(*event).command);
  EXPECT_EQ(order.job, JobId{7});
  EXPECT_EQ(order.epoch, Epoch{2});
  EXPECT_EQ(order.payload, payload);
}

TEST(TranslateTest, BeginEpoch_IsPassedOnAsItCame) {
  v1::OpenSessionResponse response;
  response.mutable_command()->set_command_number(4);
  v1::BeginEpoch& sent = *response.mutable_command()->mutable_begin_epoch();
  sent.set_job(7);
  sent.set_epoch(2);
  sent.mutable_begins()->set_updates(3);
  const std::string payload = sent.SerializeAsString();
  const auto event = EventOf(SessionNumber{1}, response);
  ASSERT_TRUE(event.has_value());
  const auto& begin = std::get<BeginEpochCommand>(std::get<CommandReceived>(*event).command);
  EXPECT_EQ(begin.job, JobId{7});
  EXPECT_EQ(begin.epoch, Epoch{2});
  EXPECT_EQ(begin.payload, payload);
}

TEST(TranslateTest, WriteIncident_IsPassedOnAsItCame) {
  v1::OpenSessionResponse response;
  v1::WriteIncident& sent = *response.mutable_command()->mutable_write_incident();
  sent.set_job(7);
  sent.set_epoch(2);
  sent.set_rank(1);
  sent.set_text("{}");
  const std::string payload = sent.SerializeAsString();
  const auto event = EventOf(SessionNumber{1}, response);
  ASSERT_TRUE(event.has_value());
  const auto& write = std::get<WriteIncidentCommand>(std::get<CommandReceived>(*event).command);
  EXPECT_EQ(write.job, JobId{7});
  EXPECT_EQ(write.epoch, Epoch{2});
  EXPECT_EQ(write.rank, 1);
  EXPECT_EQ(write.payload, payload);
}

TEST(TranslateTest, InjectFault_IsRead) {
  v1::OpenSessionResponse response;
  v1::InjectFault& sent = *response.mutable_command()->mutable_inject_fault();
  sent.set_job(7);
  sent.set_epoch(2);
  sent.mutable_fault()->set_kind(v1::FAULT_KIND_XID);
  sent.mutable_fault()->set_rank(3);
  sent.mutable_fault()->set_xid(79);
  const auto event = EventOf(SessionNumber{1}, response);
  ASSERT_TRUE(event.has_value());
  const auto& inject = std::get<InjectCommand>(std::get<CommandReceived>(*event).command);
  EXPECT_EQ(inject.job, JobId{7});
  EXPECT_EQ(inject.epoch, Epoch{2});
  EXPECT_EQ(inject.fault, (job::InjectedFault{.kind = job::FaultKind::kXid, .rank = 3, .xid = 79}));
}

TEST(TranslateTest, TryPeer_IsRead_AndAnsweredWithWhereItListens) {
  v1::OpenSessionResponse response;
  response.mutable_command()->mutable_try_peer()->set_word("word");
  response.mutable_command()->mutable_try_peer()->set_peer("10.0.0.1:4");
  const auto event = EventOf(SessionNumber{1}, response);
  ASSERT_TRUE(event.has_value());
  const auto& trial = std::get<TryPeerCommand>(std::get<CommandReceived>(*event).command);
  EXPECT_EQ(trial.word, "word");
  EXPECT_EQ(trial.peer, "10.0.0.1:4");
  const v1::CommandResult result =
      MessageOf(SendCommandResult{.command_number = 3, .listens_at = "10.0.0.2:5"})
          .command_result();
  EXPECT_EQ(result.command_number(), 3u);
  EXPECT_EQ(result.listens_at(), "10.0.0.2:5");
}

TEST(TranslateTest, FaultOfADevice_IsReportedAsOne) {
  SendReport report{.job = JobId{7}, .epoch = Epoch{1}, .rank = 2};
  report.report = RankFault{"device 0: XID 79", job::FailureKind::kDeviceFailed};
  const v1::RankError error = MessageOf(report).rank_report().error();
  EXPECT_EQ(error.kind(), v1::FAILURE_KIND_DEVICE_FAILED);
  EXPECT_EQ(error.message(), "device 0: XID 79");
}

TEST(TranslateTest, Command_OfANewerCoordinator_IsUnknown_AndAnEmptyMessageNothing) {
  v1::OpenSessionResponse response;
  EXPECT_FALSE(EventOf(SessionNumber{1}, response).has_value());
  response.mutable_command()->set_command_number(4);
  const auto event = EventOf(SessionNumber{1}, response);
  ASSERT_TRUE(event.has_value());
  EXPECT_TRUE(std::holds_alternative<UnknownCommand>(std::get<CommandReceived>(*event).command));
}

}  // namespace
}  // namespace phalanx::agent

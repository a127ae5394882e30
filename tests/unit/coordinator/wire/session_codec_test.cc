#include "coordinator/wire/session_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/derivation.h"
#include "phalanx/v1/worker_service.pb.h"

namespace phalanx::coordinator {
namespace {

v1::WorkerHello GoodHello() {
  v1::WorkerHello hello;
  hello.set_node("node-1.example");
  hello.set_incarnation(7);
  hello.set_protocol_version(kProtocolVersion);
  hello.set_device_kind("cpu");
  hello.set_devices(6);
  return hello;
}

absl::StatusCode CodeOf(const std::function<void(v1::WorkerHello&)>& spoil) {
  v1::WorkerHello hello = GoodHello();
  spoil(hello);
  return HelloFromProto(hello).status().code();
}

TEST(HelloTest, GoodOne_IsTaken) {
  const WorkerHello hello = *HelloFromProto(GoodHello());
  EXPECT_EQ(hello.node, "node-1.example");
  EXPECT_EQ(hello.devices, 6);
  EXPECT_TRUE(hello.device_memory.empty());
}

TEST(HelloTest, DeviceMemory_IsThatOfEachDevice) {
  v1::WorkerHello hello = GoodHello();
  hello.set_devices(2);
  hello.add_device_memory(int64_t{80} << 30);
  hello.add_device_memory(0);
  EXPECT_EQ(HelloFromProto(hello)->device_memory, (std::vector<int64_t>{int64_t{80} << 30, 0}));
}

TEST(HelloTest, DeviceNames_AreThoseOfDrivers_AndUnknownOfOlderWorkers) {
  v1::WorkerHello hello = GoodHello();
  EXPECT_TRUE(HelloFromProto(hello)->device_names.empty());
  hello.set_devices(2);
  hello.add_device_names("NVIDIA H200");
  EXPECT_EQ(HelloFromProto(hello).status(),
            absl::InvalidArgumentError("hello has 1 device_names; it must have one for each of "
                                       "hello.devices, or none"));
  hello.add_device_names("");
  EXPECT_EQ(HelloFromProto(hello)->device_names, (std::vector<std::string>{"NVIDIA H200", ""}));
}

TEST(HelloTest, HostMemory_IsThatOfTheNode_AndUnknownOfOlderWorkers) {
  v1::WorkerHello hello = GoodHello();
  EXPECT_EQ(HelloFromProto(hello)->host_memory, 0);
  hello.set_host_memory(int64_t{512} << 30);
  EXPECT_EQ(HelloFromProto(hello)->host_memory, int64_t{512} << 30);
  EXPECT_FALSE(HelloFromProto(hello)->gives_copies) << "a release before";
  hello.set_gives_copies(true);
  EXPECT_TRUE(HelloFromProto(hello)->gives_copies);
  hello.set_host_memory(-1);
  EXPECT_EQ(HelloFromProto(hello).status(),
            absl::InvalidArgumentError("hello.host_memory is -1; it must be the number of bytes "
                                       "that jobs may use, or 0 where it is not known"));
}

TEST(HelloTest, ProtocolVersionOfTheReleaseBefore_IsServed) {
  EXPECT_EQ(CodeOf([](v1::WorkerHello& h) { h.set_protocol_version(kProtocolVersion - 1); }),
            absl::StatusCode::kOk);
}

TEST(HelloTest, WorkerThatSaysNoDerivation_HasThatOfItsProtocolVersion) {
  v1::WorkerHello hello = GoodHello();
  hello.set_protocol_version(4);
  EXPECT_EQ(HelloFromProto(hello)->derivation, 6);
  hello.set_protocol_version(3);
  EXPECT_EQ(HelloFromProto(hello)->derivation, 5);
}

TEST(HelloTest, Derivation_IsTheOneThatTheWorkerSays) {
  v1::WorkerHello hello = GoodHello();
  for (const int32_t derivation : {plan::kOldestDerivation, plan::kDerivation + 1}) {
    hello.set_derivation(derivation);
    EXPECT_EQ(HelloFromProto(hello)->derivation, derivation);
  }
}

TEST(HelloTest, DerivationThatNobodyPlansAnyMore_SaysWhatToUpgrade) {
  v1::WorkerHello hello = GoodHello();
  hello.set_derivation(plan::kOldestDerivation - 1);
  EXPECT_EQ(HelloFromProto(hello).status(),
            absl::FailedPreconditionError("hello.derivation: 4: must be at least 5 for this "
                                          "coordinator; upgrade phalanx-worker on that node"));
}

TEST(HelloTest, OtherProtocolVersion_SaysWhatToUpgrade) {
  v1::WorkerHello hello = GoodHello();
  hello.set_protocol_version(kProtocolVersion + 1);
  EXPECT_EQ(HelloFromProto(hello).status(),
            absl::FailedPreconditionError("hello.protocol_version: 5: must be 3 or 4 for this "
                                          "coordinator; upgrade it before its workers"));
  hello.set_protocol_version(kOldestProtocolVersion - 1);
  EXPECT_EQ(HelloFromProto(hello).status(),
            absl::FailedPreconditionError("hello.protocol_version: 2: must be 3 or 4 for this "
                                          "coordinator; upgrade phalanx-worker on that node"));
}

TEST(HelloTest, MalformedFields_AreInvalidArgument) {
  const std::function<void(v1::WorkerHello&)> spoils[] = {
      [](v1::WorkerHello& h) { h.set_node(""); },
      [](v1::WorkerHello& h) { h.set_node("a/../b"); },
      [](v1::WorkerHello& h) { h.set_node(std::string("a\0b", 3)); },
      [](v1::WorkerHello& h) { h.set_node("line\nbreak"); },
      [](v1::WorkerHello& h) { h.set_node(std::string(254, 'n')); },
      [](v1::WorkerHello& h) { h.set_incarnation(0); },
      [](v1::WorkerHello& h) { h.set_device_kind("tpu"); },
      [](v1::WorkerHello& h) { h.set_devices(-1); },
      [](v1::WorkerHello& h) { h.set_devices(kDevicesMax + 1); },
      [](v1::WorkerHello& h) { h.add_device_memory(1); },  // of six devices
      [](v1::WorkerHello& h) {
        for (int i = 0; i < 6; ++i) h.add_device_memory(-1);
      },
      [](v1::WorkerHello& h) { (*h.mutable_labels())["zone"] = std::string(100'000, 'v'); },
      [](v1::WorkerHello& h) { h.set_version(std::string(100'000, 'v')); },
      [](v1::WorkerHello& h) { (*h.mutable_labels())["zone"] = "a\nb"; },
      [](v1::WorkerHello& h) { (*h.mutable_labels())["zo\x1b[2Jne"] = "a"; },
      [](v1::WorkerHello& h) {
        for (int i = 0; i < 6; ++i) h.add_device_names("a\nb");
      },
      [](v1::WorkerHello& h) {
        for (int i = 0; i < 6; ++i) h.add_device_names(std::string(1000, 'n'));
      },
      [](v1::WorkerHello& h) { h.set_version("1\x7f"); },
      [](v1::WorkerHello& h) { h.set_address(std::string("10.0.0.5\0x", 10)); }};
  for (const auto& spoil : spoils) EXPECT_EQ(CodeOf(spoil), absl::StatusCode::kInvalidArgument);
}

TEST(EventTest, Checks_AreThoseOfHelloAndHeartbeat_AndMayBeAbsent) {
  v1::WorkerHello hello = GoodHello();
  EXPECT_EQ(HelloFromProto(hello)->check, nullptr);
  v1::DeviceCheck& device = *hello.mutable_check()->add_devices();
  device.set_device(1);
  device.set_verdict(v1::DeviceCheck::VERDICT_FAILED);
  EXPECT_EQ(HelloFromProto(hello)->check->devices.at(0).verdict, job::CheckVerdict::kFailed);
  v1::OpenSessionRequest message;
  message.mutable_heartbeat();
  EXPECT_EQ(std::get<HeartbeatReceived>(*EventFromProto(SessionId{1}, message)).check, nullptr);
  *message.mutable_heartbeat()->mutable_check() = hello.check();
  const auto heard = std::get<HeartbeatReceived>(*EventFromProto(SessionId{1}, message));
  EXPECT_EQ(heard.check->devices.at(0).device, 1);
}

TEST(EventTest, Examination_MayBeAbsent_AndIsOfWhenItCame) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  v1::OpenSessionRequest message;
  message.mutable_heartbeat();
  EXPECT_EQ(std::get<HeartbeatReceived>(*EventFromProto(SessionId{1}, message)).examination,
            nullptr);
  message.mutable_heartbeat()->mutable_examination()->mutable_sent()->set_seconds(1'700'000'060);
  const auto heard = std::get<HeartbeatReceived>(*EventFromProto(SessionId{1}, message, now));
  EXPECT_EQ(heard.examination->ahead_max, absl::Seconds(60));
}

TEST(EventTest, Temperatures_ThatNoDeviceHas_AreUnknown) {
  v1::OpenSessionRequest message;
  for (const int32_t degrees : {41, -1, 0, 100'000}) {
    message.mutable_heartbeat()->add_device_temperatures(degrees);
  }
  const auto heard = std::get<HeartbeatReceived>(*EventFromProto(SessionId{1}, message));
  EXPECT_EQ(heard.device_temperatures, (std::vector<int32_t>{41, 0, 0, 0}));
}

TEST(EventTest, UsedMemory_ThatNoDeviceCanHave_IsUnknownOrCut) {
  v1::OpenSessionRequest message;
  message.mutable_heartbeat()->set_draining(false);
  for (const int64_t bytes : {int64_t{5} << 30, int64_t{0}, int64_t{-7}, int64_t{1} << 60})
    message.mutable_heartbeat()->add_device_used_memory(bytes);
  const auto few = EventFromProto(SessionId{7}, message);
  EXPECT_EQ(std::get<HeartbeatReceived>(*few).device_used_memory,
            (std::vector<int64_t>{int64_t{5} << 30, 0, -1, -1}));
  for (int i = 0; i < kDevicesMax; ++i) message.mutable_heartbeat()->add_device_used_memory(1);
  const auto many = EventFromProto(SessionId{7}, message);
  EXPECT_EQ(std::get<HeartbeatReceived>(*many).device_used_memory.size(),
            static_cast<size_t>(kDevicesMax));
}

TEST(EventTest, Temperatures_OfMoreDevicesThanThereMayBe_AreCut) {
  v1::OpenSessionRequest message;
  for (int i = 0; i <= kDevicesMax; ++i) message.mutable_heartbeat()->add_device_temperatures(41);
  const auto heard = std::get<HeartbeatReceived>(*EventFromProto(SessionId{1}, message));
  EXPECT_EQ(heard.device_temperatures.size(), static_cast<size_t>(kDevicesMax));
}

TEST(EventTest, WaitOfRanks_IsNoneWhereItIsNoDuration) {
  v1::OpenSessionRequest message;
  for (const double seconds : {12.5, -1.0, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()})
    message.mutable_heartbeat()->add_progress()->set_waits_seconds(seconds);
  const auto heard = std::get<HeartbeatReceived>(*EventFromProto(SessionId{1}, message));
  ASSERT_EQ(heard.progress.size(), 4U);
  EXPECT_EQ(heard.progress[0].waits, absl::Seconds(12.5));
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(heard.progress[i].waits, absl::ZeroDuration());
}

TEST(EventTest, Work_IsThatOfRanksThatSayIt) {
  v1::OpenSessionRequest message;
  v1::Heartbeat::Progress& progress = *message.mutable_heartbeat()->add_progress();
  progress.set_job(7);
  progress.set_step(30);
  const auto heard = [&message] {
    return std::get<HeartbeatReceived>(*EventFromProto(SessionId{1}, message)).progress.at(0);
  };
  EXPECT_TRUE(heard().work.empty()) << "a daemon of a release before says nothing of it";
  const auto add = [&progress](int32_t rank, double seconds, uint64_t equal) {
    v1::Heartbeat::Work& work = *progress.add_work();
    work.set_rank(rank);
    work.set_seconds(seconds);
    work.set_equal(equal);
  };
  add(3, 0.25, 77);
  // What no rank can say.
  add(-1, 0.25, 77);
  add(4, 0, 77);
  add(4, -1, 77);
  add(4, std::numeric_limits<double>::quiet_NaN(), 77);
  add(4, std::numeric_limits<double>::infinity(), 77);
  add(4, 0.25, 0);
  ASSERT_EQ(heard().work.size(), 1u);
  EXPECT_EQ(heard().step, 30);
  EXPECT_EQ(heard().work[0].rank, 3);
  EXPECT_EQ(heard().work[0].seconds, 0.25);
  EXPECT_EQ(heard().work[0].equal, 77u);
  EXPECT_EQ(heard().work[0].like, 0u);
  // Only both together are of use.
  progress.mutable_work(0)->set_like(78);
  EXPECT_EQ(heard().work[0].like, 0u);
  progress.mutable_work(0)->set_seconds_per_gflop(0.5);
  EXPECT_EQ(heard().work[0].like, 78u);
  EXPECT_EQ(heard().work[0].seconds_per_gflop, 0.5);
  progress.mutable_work(0)->set_seconds_per_gflop(-1);
  EXPECT_EQ(heard().work[0].like, 0u);
  for (int32_t rank = 0; rank <= kDevicesMax; ++rank) add(rank, 0.25, 77);
  EXPECT_LE(heard().work.size(), static_cast<size_t>(kDevicesMax));
}

TEST(MessageTest, EmptyOrUnknown_IsPassedOver) {
  EXPECT_FALSE(EventFromProto(SessionId{1}, {}).has_value());
  v1::OpenSessionRequest report;
  report.mutable_rank_report()->set_job(1);
  EXPECT_FALSE(EventFromProto(SessionId{1}, report).has_value());
}

TEST(MessageTest, SecondHello_IsPassedOver) {
  v1::OpenSessionRequest message;
  *message.mutable_hello() = GoodHello();
  EXPECT_FALSE(EventFromProto(SessionId{1}, message).has_value());
}

// What comes of a report whose every text is as long as a message allows.
template <typename Report>
Report Taken(const std::function<void(v1::RankReport&)>& fill) {
  v1::OpenSessionRequest message;
  fill(*message.mutable_rank_report());
  return std::get<Report>(std::get<RankReported>(*EventFromProto(SessionId{1}, message)).report);
}

TEST(MessageTest, TextsOfRanks_AreCut) {
  const std::string text(1 << 20, 't');
  const std::string cut = absl::StrCat(std::string(kReportedTextBytesMax, 't'), "... (",
                                       text.size() - kReportedTextBytesMax, " bytes more)");
  EXPECT_EQ(Taken<RankError>([&](auto& r) { r.mutable_error()->set_message(text); }).message, cut);
  EXPECT_EQ(Taken<RankExited>([&](auto& r) { r.mutable_exited()->set_log_tail(text); }).log_tail,
            cut);
  const auto event = Taken<RankEvent>([&](auto& r) {
    r.mutable_event()->set_type(text);
    r.mutable_event()->set_message(text);
  });
  EXPECT_EQ(event.type, cut);
  EXPECT_EQ(event.message, cut);
  const auto evaluation = Taken<EvaluationReport>([&](auto& r) {
    for (int i = 0; i <= kCaptionsMax; ++i) {
      r.mutable_evaluation()->add_captions()->set_decoded(text);
    }
  });
  EXPECT_EQ(evaluation.captions.size(), static_cast<size_t>(kCaptionsMax));
  EXPECT_EQ(evaluation.captions[0].decoded, cut);
}

TEST(MessageTest, ShapeOfData_IsTaken_UnlessNoSetHasIt) {
  const auto taken = [](double items, double share) {
    v1::OpenSessionRequest message;
    v1::DataShape* shape = message.mutable_command_result()->mutable_data_shape();
    shape->set_items(items);
    shape->set_labelled_share(share);
    return std::get<CommandFinished>(*EventFromProto(SessionId{1}, message)).data_shape;
  };
  EXPECT_EQ(taken(3.5, 0.25), (job::DataShape{.items = 3.5, .labelled_share = 0.25}));
  EXPECT_EQ(taken(-1, 0.25), std::nullopt);
  EXPECT_EQ(taken(1e9, 0.25), std::nullopt);
  EXPECT_EQ(taken(1, 1.5), std::nullopt);
  EXPECT_EQ(taken(1, std::nan("")), std::nullopt);
  v1::OpenSessionRequest older;
  older.mutable_command_result();
  EXPECT_EQ(std::get<CommandFinished>(*EventFromProto(SessionId{1}, older)).data_shape,
            std::nullopt);
}

TEST(MessageTest, TextsOfAWorker_AreCut) {
  const std::string text(100'000, 't');
  v1::OpenSessionRequest message;
  v1::CommandResult* result = message.mutable_command_result();
  result->set_message(text);
  for (int i = 0; i <= kCorruptNamedMax; ++i) result->add_corrupt_messages(text);
  for (int i = 0; i <= kViolationsMax; ++i) result->add_data_violations()->set_value(text);
  for (int i = 0; i <= kPassedOverMax; ++i) result->mutable_checkpoint()->add_passed_over(text);
  const auto finished = std::get<CommandFinished>(*EventFromProto(SessionId{1}, message));
  const size_t length = kReportedTextBytesMax + 100;
  EXPECT_LT(finished.message.size(), length);
  EXPECT_EQ(finished.corrupt_messages.size(), static_cast<size_t>(kCorruptNamedMax));
  EXPECT_LT(finished.corrupt_messages[0].size(), length);
  EXPECT_EQ(finished.data_violations.size(), static_cast<size_t>(kViolationsMax));
  EXPECT_LT(finished.data_violations[0].value.size(), length);
  ASSERT_TRUE(finished.choice.has_value());
  EXPECT_EQ(finished.choice->passed_over.size(), static_cast<size_t>(kPassedOverMax));
  EXPECT_LT(finished.choice->passed_over[0].size(), length);
}

TEST(MessageTest, Ready_SaysHowLongEachPartTook) {
  v1::OpenSessionRequest message;
  v1::RankReady& ready = *message.mutable_rank_report()->mutable_ready();
  ready.set_connected(0.5);
  ready.set_state(-1);
  ready.set_ready(std::numeric_limits<double>::quiet_NaN());
  const std::optional<Event> event = EventFromProto(SessionId{1}, message);
  ASSERT_TRUE(event.has_value());
  const auto& report = std::get<RankReady>(std::get<RankReported>(*event).report);
  EXPECT_EQ(report.connected, 0.5);
  EXPECT_EQ(report.state, 0) << "none can be";
  EXPECT_EQ(report.ready, 0);
}

TEST(MessageTest, Safe_SaysWhyNot) {
  v1::OpenSessionRequest message;
  message.mutable_rank_report()->mutable_safe()->set_why_not("no room");
  const std::optional<Event> event = EventFromProto(SessionId{1}, message);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<RankSafe>(std::get<RankReported>(*event).report).why_not, "no room");
}

TEST(MessageTest, Standby_SaysWhichSetAndWhyNot) {
  v1::OpenSessionRequest message;
  message.mutable_rank_report()->mutable_standby()->set_set("standby/1/a");
  message.mutable_rank_report()->mutable_standby()->set_error("no memory");
  const std::optional<Event> event = EventFromProto(SessionId{1}, message);
  ASSERT_TRUE(event.has_value());
  const auto& report = std::get<RankStandby>(std::get<RankReported>(*event).report);
  EXPECT_EQ(report.set, "standby/1/a");
  EXPECT_EQ(report.error, "no memory");
}

TEST(MessageTest, Result_SaysWhereItListens_Bounded) {
  v1::OpenSessionRequest message;
  message.mutable_command_result()->set_listens_at("10.0.0.1:4");
  EXPECT_EQ(std::get<CommandFinished>(*EventFromProto(SessionId{1}, message)).listens_at,
            "10.0.0.1:4");
  message.mutable_command_result()->set_listens_at(std::string(1 << 20, '1'));
  EXPECT_EQ(std::get<CommandFinished>(*EventFromProto(SessionId{1}, message)).listens_at.size(),
            64u);
}

TEST(MessageTest, Quiet_SaysWhereTheStateStands) {
  v1::OpenSessionRequest message;
  v1::RankReport& report = *message.mutable_rank_report();
  report.set_job(7);
  report.set_epoch(1);
  report.set_rank(2);
  v1::RankQuiet& quiet = *report.mutable_quiet();
  quiet.mutable_decision()->set_step(6);
  quiet.mutable_decision()->set_verdict(v1::StepDecision::COMMITTED);
  quiet.set_updates(5);
  quiet.set_context_ok(true);
  quiet.set_copied(4);
  quiet.set_layout_epoch(1);
  quiet.set_begun(7);
  v1::RankQuiet::Home& home = *quiet.add_homes();
  home.set_module(1);
  home.set_chunk(2);
  home.set_primary(3);
  home.set_applied(5);
  const RankQuiet expected{.known = {.decision = StepDecision{.step = 6}, .updates = 5},
                           .homes = {{.module = 1, .chunk = 2, .primary = 3, .applied = 5}},
                           .context_ok = true,
                           .copied = 4,
                           .layout_epoch = Epoch{1},
                           .begun = 7};
  const auto event = EventFromProto(SessionId{1}, message);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<RankQuiet>(std::get<RankReported>(*event).report), expected);
  for (const int64_t step : {int64_t{0}, int64_t{-3}}) {
    quiet.mutable_decision()->set_step(step);
    EXPECT_FALSE(EventFromProto(SessionId{1}, message).has_value()) << "no step " << step;
  }
}

TEST(MessageTest, Copies_AreThoseOfWholeStepsAndTwoAtMost) {
  v1::OpenSessionRequest message;
  v1::RankReport& report = *message.mutable_rank_report();
  report.set_job(7);
  report.set_epoch(3);
  v1::RankCopies::Pair& pair = *report.mutable_copies()->add_pairs();
  pair.set_rank(2);
  pair.set_epoch(1);
  v1::RankCopies::Copy& copy = *pair.add_copies();
  copy.set_plan(9);
  copy.mutable_start()->set_updates(5);
  copy.mutable_start()->mutable_decision()->set_step(6);
  copy.mutable_start()->mutable_decision()->set_verdict(v1::StepDecision::COMMITTED);
  const EpochStart start{.decision = StepDecision{.step = 6}, .updates = 5};
  const RankCopies expected{
      .pairs = {{.rank = 2, .epoch = Epoch{1}, .copies = {{.start = start, .plan = 9}}}}};
  const auto event = EventFromProto(SessionId{1}, message);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<RankCopies>(std::get<RankReported>(*event).report), expected);
  *pair.add_copies() = copy;
  EXPECT_TRUE(EventFromProto(SessionId{1}, message).has_value());
  *pair.add_copies() = copy;
  EXPECT_FALSE(EventFromProto(SessionId{1}, message).has_value());
  pair.mutable_copies()->DeleteSubrange(1, 2);
  pair.mutable_copies(0)->mutable_start()->mutable_decision()->set_step(0);
  EXPECT_FALSE(EventFromProto(SessionId{1}, message).has_value());
}

TEST(MessageTest, EarlyEnd_IsToldFromAnother) {
  const auto report = [](bool early) {
    return Taken<RankSucceeded>([&](auto& r) {
      r.mutable_succeeded()->set_step(7);
      r.mutable_succeeded()->set_early(early);
    });
  };
  EXPECT_EQ(report(true).step, 7);
  EXPECT_TRUE(report(true).early);
  EXPECT_FALSE(report(false).early);
}

}  // namespace
}  // namespace phalanx::coordinator

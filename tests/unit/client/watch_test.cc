// Following a job: outcomes, broken streams, detaching, and what progress looks like.
#include "client/watch.h"

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/progress.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;

using WatchWriter = grpc::ServerWriter<v1::WatchJobResponse>;

v1::WatchJobResponse Update(v1::JobPhase phase, int64_t step = 0) {
  v1::WatchJobResponse response;
  *response.mutable_job() = AJob(phase, step);
  return response;
}

struct Outcome {
  v1::JobPhase phase;
  int exit_code;
};
class OutcomeTest : public ::testing::TestWithParam<Outcome> {};

TEST_P(OutcomeTest, TerminalPhase_IsTheExitCode) {
  FakeServer server;
  server.watch = [](grpc::ServerContext*, WatchWriter* writer) {
    writer->Write(Update(v1::JOB_PHASE_RUNNING, 1));
    writer->Write(Update(GetParam().phase, 300));
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), GetParam().exit_code);
}
INSTANTIATE_TEST_SUITE_P(Phases, OutcomeTest,
                         ::testing::Values(Outcome{v1::JOB_PHASE_SUCCEEDED, 0},
                                           Outcome{v1::JOB_PHASE_FAILED, 100},
                                           Outcome{v1::JOB_PHASE_CANCELLED, 103}));

TEST(WatchTest, UnknownJob_IsNotFound) {
  FakeServer server;
  server.watch = [](grpc::ServerContext*, WatchWriter*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no job demo");
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), 102);
}

TEST(WatchTest, NobodyThere_IsUnreachable) {
  Connection connection({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(100)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), 69);
}

TEST(WatchTest, BrokenStream_IsOpenedAgain_AndNothingIsShownTwice) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.watch = [&](grpc::ServerContext*, WatchWriter* writer) {
    v1::WatchJobResponse first = Update(v1::JOB_PHASE_RUNNING, 1);
    v1::JobEvent* event = first.add_events();
    event->set_number(1);
    event->set_type("Planned");
    writer->Write(first);
    if (++calls == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    writer->Write(Update(v1::JOB_PHASE_SUCCEEDED, 300));
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), 0);
  EXPECT_EQ(calls, 2);
  const std::string talk = captured.talk.str();
  EXPECT_THAT(talk, HasSubstr("does not answer; trying again"));
  EXPECT_EQ(talk.find("Planned"), talk.rfind("Planned"));
  EXPECT_EQ(talk.find("step 1/300"), talk.rfind("step 1/300"));
}

TEST(WatchTest, StreamThatAServerCancels_IsOpenedAgain) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.watch = [&](grpc::ServerContext*, WatchWriter* writer) {
    if (++calls == 1) return grpc::Status::CANCELLED;
    writer->Write(Update(v1::JOB_PHASE_SUCCEEDED, 300));
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), 0);
  EXPECT_EQ(calls, 2);
}

// What happened is a line; the log of a process that is gone is for `events`.
TEST(WatchTest, EventWithALog_IsItsFirstLine) {
  FakeServer server;
  server.watch = [](grpc::ServerContext*, WatchWriter* writer) {
    v1::WatchJobResponse response = Update(v1::JOB_PHASE_SUCCEEDED, 300);
    v1::JobEvent* event = response.add_events();
    event->set_number(1);
    event->set_type("RankFailed");
    event->set_message("rank 3 on node b exited with code 1\nstandby/9/1: OK\nits last words");
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), 0);
  EXPECT_THAT(captured.talk.str(), HasSubstr("RankFailed: rank 3 on node b exited with code 1\n"));
  EXPECT_THAT(captured.talk.str(), testing::Not(HasSubstr("its last words")));
}

TEST(WatchTest, EventsThatWereLeftOut_AreCounted) {
  FakeServer server;
  server.watch = [&](grpc::ServerContext*, WatchWriter* writer) {
    // What had happened before the watch began, 1 to 4, is not missed.
    for (const int64_t number : {5, 6, 9, 11}) {
      v1::WatchJobResponse response = Update(v1::JOB_PHASE_RUNNING, 1);
      v1::JobEvent* event = response.add_events();
      event->set_number(number);
      event->set_type(absl::StrCat("Noise", number));
      writer->Write(response);
    }
    writer->Write(Update(v1::JOB_PHASE_SUCCEEDED, 300));
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), 0);
  const std::string talk = captured.talk.str();
  EXPECT_LT(talk.find("Noise5\n"), talk.find("left out")) << talk;
  EXPECT_THAT(talk, HasSubstr("Noise6\n(2 events are left out here; phalanx events job-7 "
                              "has them)\nNoise9\n(1 event is left out here; "));
}

// However long it was quiet before: who has no patience at all asks once more.
TEST(WatchTest, BrokenStream_IsWaitedForFromItsBreakOn) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.watch = [&](grpc::ServerContext*, WatchWriter* writer) {
    if (++calls == 1) {
      writer->Write(Update(v1::JOB_PHASE_QUEUED));
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    }
    writer->Write(Update(v1::JOB_PHASE_SUCCEEDED, 300));
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  const auto watched = WatchJob(connection, "demo", stopper, captured.io, absl::ZeroDuration());
  ASSERT_TRUE(watched.ok()) << watched.status();
  EXPECT_EQ(watched->job.phase(), v1::JOB_PHASE_SUCCEEDED);
}

TEST(WatchTest, Stop_DetachesAndSaysSo) {
  FakeServer server;
  absl::Notification watching;
  server.watch = [&](grpc::ServerContext* context, WatchWriter* writer) {
    writer->Write(Update(v1::JOB_PHASE_RUNNING, 1));
    watching.Notify();
    // A watched job that says nothing: until the client goes away.
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  std::thread interrupter([&] {
    watching.WaitForNotification();
    stopper.Stop();
  });
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), kJobNotFinished);
  interrupter.join();
  EXPECT_THAT(captured.talk.str(), HasSubstr("detached; demo goes on."));
}

TEST(WatchTest, TextOfRanks_ReachesNoTerminalAsItIs) {
  FakeServer server;
  server.watch = [](grpc::ServerContext*, WatchWriter* writer) {
    v1::WatchJobResponse response = Update(v1::JOB_PHASE_FAILED, 3);
    response.mutable_job()->set_reason("DataInvalid: a\x1b[2J.tar");
    v1::FailureCause* failure = response.mutable_job()->mutable_failure();
    failure->set_cause("Data\x1b[2JInvalid");
    failure->set_rank(-1);
    failure->set_node("n\x1b[2J");
    failure->set_message("a\x1b[2J.tar");
    v1::JobEvent* event = response.add_events();
    event->set_number(1);
    event->set_type("Noise\x1b[2J");
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), 100);
  EXPECT_EQ(captured.talk.str().find('\x1b'), std::string::npos) << captured.talk.str();
  EXPECT_THAT(captured.talk.str(), HasSubstr("DataInvalid: a\\x1b[2J.tar"));
}

TEST(WatchTest, Evaluation_IsData) {
  FakeServer server;
  server.watch = [](grpc::ServerContext*, WatchWriter* writer) {
    v1::WatchJobResponse response = Update(v1::JOB_PHASE_SUCCEEDED, 300);
    response.mutable_evaluation()->set_loss(1.5);
    response.mutable_evaluation()->set_uniform_loss(6.2383);
    response.mutable_evaluation()->set_counted_tokens(900);
    auto* caption = response.mutable_evaluation()->add_captions();
    caption->set_sample("0042");
    caption->set_truth("red apple");
    caption->set_decoded("red cherries");
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Watch(connection, "demo", stopper, captured.io), 0);
  EXPECT_EQ(captured.out.str(),
            "validation loss 1.5 over 900 tokens; a uniform guess has 6.238\n"
            "SAMPLE  TRUE       DECODED\n"
            "0042    red apple  red cherries\n");
}

TEST(ProgressTest, Terminal_RedrawsOneLineWithABar) {
  Captured captured;
  captured.io.terminal = true;
  Progress progress(captured.io);
  const absl::Time start = absl::UnixEpoch();
  progress.Show(Update(v1::JOB_PHASE_RUNNING, 75), start);
  EXPECT_EQ(ProgressBar(0.25, 8), "[##......]");
  EXPECT_THAT(captured.talk.str(), HasSubstr("\r[#######...................] step 75/300"));
  EXPECT_THAT(captured.talk.str(), HasSubstr("step 75/300  loss 1.25  2.00k tokens/s  1m52s left"));
}

TEST(ProgressTest, NoTerminal_WritesPlainLinesNowAndThen) {
  Captured captured;
  Progress progress(captured.io);
  absl::Time now = absl::UnixEpoch();
  for (int64_t step = 1; step <= 300; ++step) {
    now += absl::Milliseconds(500);
    progress.Show(Update(v1::JOB_PHASE_RUNNING, step), now);
  }
  const std::string talk = captured.talk.str();
  EXPECT_EQ(talk.find('\r'), std::string::npos);
  EXPECT_EQ(talk.find('\x1b'), std::string::npos);
  EXPECT_THAT(talk, HasSubstr("step 1/300"));
  EXPECT_THAT(talk, HasSubstr("step 300/300"));
  // The first, the last, and one for every five of the 150 seconds.
  EXPECT_NEAR(static_cast<double>(std::count(talk.begin(), talk.end(), '\n')), 32, 3);
}

TEST(FormatTest, Ages_HaveTwoUnits) {
  EXPECT_EQ(FormatAge(absl::Seconds(5)), "5s");
  EXPECT_EQ(FormatAge(absl::Seconds(192)), "3m12s");
  EXPECT_EQ(FormatAge(absl::Minutes(125)), "2h05m");
  EXPECT_EQ(FormatAge(absl::Hours(99)), "4d03h");
}

TEST(FormatTest, Counts_HaveThreeDigits) {
  EXPECT_EQ(FormatCount(950), "950");
  EXPECT_EQ(FormatCount(12345), "12.3k");
  EXPECT_EQ(FormatCount(4560000), "4.56M");
}

}  // namespace
}  // namespace phalanx::client

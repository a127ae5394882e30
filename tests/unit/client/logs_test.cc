// What ranks wrote, read once and followed over restarts.
#include "client/logs.h"

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using LogWriter = grpc::ServerWriter<v1::GetLogsResponse>;

v1::GetLogsResponse Chunk(int32_t rank, const std::string& text, const std::string& place) {
  v1::GetLogsResponse chunk;
  chunk.set_node("n");
  chunk.set_rank(rank);
  chunk.set_text(text);
  chunk.set_place(place);
  return chunk;
}

TEST(LogsTest, Lines_NameTheirRank_UnlessThereIsOne) {
  FakeServer server;
  v1::GetLogsRequest asked;
  server.logs = [&](const v1::GetLogsRequest& request,
                    grpc::ServerWriter<v1::GetLogsResponse>* writer) {
    asked = request;
    v1::GetLogsResponse response;
    response.set_rank(3);
    response.set_text("one\n\ntwo\n");
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured all, one;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "7", .tail = 5}, stopper, all.io), kSuccess);
  EXPECT_EQ(all.out.str(), "[3] one\n[3] \n[3] two\n");
  EXPECT_EQ(asked.tail(), 5);
  EXPECT_EQ(Logs(connection, {.job = "7", .ranks = {3}}, stopper, one.io), kSuccess);
  EXPECT_EQ(one.out.str(), "one\n\ntwo\n");
}

TEST(LogsTest, OfANode_LinesOfOthersAreLeftOut) {
  FakeServer server;
  server.logs = [&](const v1::GetLogsRequest&, LogWriter* writer) {
    for (const char* node : {"a", "b"}) {
      v1::GetLogsResponse chunk = Chunk(3, absl::StrCat("of ", node, "\n"), "1");
      chunk.set_node(node);
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  };
  server.get = [](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    response->mutable_job()->set_id(7);
    response->mutable_job()->set_epoch(1);
    for (const char* node : {"a", "b"})
      response->mutable_job()->mutable_placement()->add_nodes()->set_node(node);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured of_b, of_c;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "7", .nodes = {"b"}}, stopper, of_b.io), kSuccess);
  EXPECT_EQ(of_b.out.str(), "[3] of b\n");
  EXPECT_EQ(Logs(connection, {.job = "7", .nodes = {"c"}}, stopper, of_c.io), kSuccess);
  EXPECT_EQ(of_c.out.str(), "");
  EXPECT_EQ(of_c.talk.str(), "no such logs; job-7 has been on a, b\n");
}

TEST(LogsTest, NodeThatIsNotThere_IsSaidOnce) {
  FakeServer server;
  server.logs = [&](const v1::GetLogsRequest&, LogWriter* writer) {
    v1::GetLogsResponse gone;
    gone.set_node("gone");
    gone.set_absent(true);
    for (int time = 0; time < 2; ++time) writer->Write(gone);
    writer->Write(Chunk(3, "line\n", "1"));
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured all, of_n;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "7"}, stopper, all.io), kSuccess);
  EXPECT_EQ(all.out.str(), "[3] line\n");
  EXPECT_EQ(all.talk.str(), "node gone is not connected: what ranks wrote there is left out\n");
  EXPECT_EQ(Logs(connection, {.job = "7", .nodes = {"n"}}, stopper, of_n.io), kSuccess);
  EXPECT_EQ(of_n.talk.str(), "");
}

TEST(LogsTest, ControlCharacters_AreWrittenOutUnlessRawIsAsked) {
  FakeServer server;
  const std::string written = "\x1b[2J\x1b]0;title\x07 caf\xC3\xA9 \xC2\x9B \x9B \ttab\r\n";
  server.logs = [&](const v1::GetLogsRequest&, grpc::ServerWriter<v1::GetLogsResponse>* writer) {
    v1::GetLogsResponse response;
    response.set_text(written);
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured shown, raw;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "7", .ranks = {0}}, stopper, shown.io), kSuccess);
  EXPECT_EQ(shown.out.str(),
            "\\x1b[2J\\x1b]0;title\\x07 caf\xC3\xA9 \\xc2\\x9b \\x9b \ttab\\x0d\n");
  EXPECT_EQ(Logs(connection, {.job = "7", .ranks = {0}, .raw = true}, stopper, raw.io), kSuccess);
  EXPECT_EQ(raw.out.str(), written);
}

class StampedLogsTest : public ::testing::Test {
 protected:
  StampedLogsTest() {
    server_.logs = [](const v1::GetLogsRequest&, LogWriter* writer) {
      writer->Write(
          Chunk(0, "of a library\n2026-01-31T12:00:00.250Z info begins\nof its own\n", "1"));
      writer->Write(Chunk(1, "2026-01-31T12:00:03.000Z warning late\n", "2"));
      writer->Write(Chunk(0, "goes on\n2026-01-31T12:00:02.000Z info ends\n", "3"));
      return grpc::Status::OK;
    };
  }

  FakeServer server_;
  Connection connection_ = server_.Connect();
  Captured captured_;
  Stopper stopper_;
};

TEST_F(StampedLogsTest, Stamps_AreLeftOutUnlessAskedFor) {
  EXPECT_EQ(Logs(connection_, {.job = "7"}, stopper_, captured_.io), kSuccess);
  EXPECT_EQ(captured_.out.str(),
            "[0] of a library\n[0] info begins\n[0] of its own\n[1] warning late\n[0] goes on\n"
            "[0] info ends\n");
  Captured raw;
  Logs(connection_, {.job = "7", .raw = true}, stopper_, raw.io);
  EXPECT_THAT(raw.out.str(), HasSubstr("[1] 2026-01-31T12:00:03.000Z warning late\n"));
}

TEST_F(StampedLogsTest, Timestamps_AreThoseOfTheRanksOwnLineBefore) {
  EXPECT_EQ(Logs(connection_, {.job = "7", .timestamps = true}, stopper_, captured_.io), kSuccess);
  EXPECT_EQ(captured_.out.str(),
            "[0] - of a library\n"
            "[0] 2026-01-31T12:00:00.250Z info begins\n"
            "[0] 2026-01-31T12:00:00.250Z of its own\n"
            "[1] 2026-01-31T12:00:03.000Z warning late\n"
            "[0] 2026-01-31T12:00:00.250Z goes on\n"
            "[0] 2026-01-31T12:00:02.000Z info ends\n");
}

TEST_F(StampedLogsTest, Since_LeavesOutWhatIsKnownToBeEarlier) {
  absl::Time since;
  ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full, "2026-01-31T12:00:02Z", &since, nullptr));
  EXPECT_EQ(Logs(connection_, {.job = "7", .since = since}, stopper_, captured_.io), kSuccess);
  EXPECT_EQ(captured_.out.str(), "[0] of a library\n[1] warning late\n[0] info ends\n");
}

class ChosenLogsTest : public ::testing::Test {
 protected:
  ChosenLogsTest() {
    server_.get = [this](const v1::GetJobRequest&, v1::GetJobResponse* response) {
      *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING);
      response->mutable_job()->set_epoch(epoch_);
      response->mutable_job()->mutable_document()->set_text(
          support::ReadFile(tests::SourceDir() + "/examples/emoji-captions.yaml"));
      return grpc::Status::OK;
    };
    server_.logs = [this](const v1::GetLogsRequest& request, LogWriter* writer) {
      asked_ = request;
      for (const int64_t epoch : {1, 2, 3, 0}) {
        v1::GetLogsResponse chunk = Chunk(0, absl::StrCat("epoch ", epoch, "\n"), "");
        chunk.set_epoch(epoch);
        writer->Write(chunk);
      }
      return grpc::Status::OK;
    };
  }

  FakeServer server_;
  int64_t epoch_ = 3;
  v1::GetLogsRequest asked_;
  Connection connection_ = server_.Connect();
  Captured captured_;
  Stopper stopper_;
};

TEST_F(ChosenLogsTest, Previous_IsWhatWasWrittenInTheEpochBefore) {
  EXPECT_EQ(
      Logs(connection_, {.job = "demo", .ranks = {0}, .previous = true}, stopper_, captured_.io),
      kSuccess);
  EXPECT_EQ(captured_.out.str(), "epoch 2\n");
  EXPECT_THAT(captured_.talk.str(), HasSubstr("node n does not say in which epoch"));
  EXPECT_EQ(asked_.job(), "job-7");
  Captured third;
  Logs(connection_, {.job = "demo", .ranks = {0}, .epoch = 3}, stopper_, third.io);
  EXPECT_EQ(third.out.str(), "epoch 3\n");
}

TEST_F(ChosenLogsTest, TailOfAnEpoch_IsOfEachRanksLinesInIt) {
  server_.logs = [this](const v1::GetLogsRequest& request, LogWriter* writer) {
    asked_ = request;
    for (const int32_t rank : {1, 0}) {
      for (const int64_t epoch : {2, 3}) {
        for (const char* lines : {"a\nb\n", "c\n"}) {
          v1::GetLogsResponse chunk = Chunk(rank, lines, "");
          chunk.set_epoch(epoch);
          writer->Write(chunk);
        }
      }
    }
    return grpc::Status::OK;
  };
  for (const LogsOptions& options : {LogsOptions{.job = "demo", .previous = true, .tail = 2},
                                     LogsOptions{.job = "demo", .epoch = 2, .tail = 2}}) {
    Captured captured;
    EXPECT_EQ(Logs(connection_, options, stopper_, captured.io), kSuccess);
    EXPECT_EQ(captured.out.str(), "[0] b\n[0] c\n[1] b\n[1] c\n");
    EXPECT_EQ(asked_.tail(), 0) << "nodes count it over all epochs";
  }
}

TEST_F(ChosenLogsTest, EpochThatTheJobHasNot_IsRefused) {
  EXPECT_EQ(Logs(connection_, {.job = "demo", .epoch = 9}, stopper_, captured_.io), kFailure);
  EXPECT_EQ(captured_.out.str(), "");
  EXPECT_EQ(captured_.talk.str(), "error: job-7 has no epoch 9; its last one is 3\n");
}

TEST_F(ChosenLogsTest, EpochThatNobodyWroteIn_IsSaid) {
  epoch_ = 9;
  EXPECT_EQ(Logs(connection_, {.job = "demo", .epoch = 9}, stopper_, captured_.io), kSuccess);
  EXPECT_EQ(captured_.out.str(), "");
  EXPECT_THAT(captured_.talk.str(), HasSubstr("no such logs\n"));
}

TEST_F(ChosenLogsTest, LinesThatANodeDropped_AreSaid) {
  server_.logs = [](const v1::GetLogsRequest&, LogWriter*) { return grpc::Status::OK; };
  server_.events = [](const v1::ListEventsRequest& request, v1::ListEventsResponse* response) {
    EXPECT_THAT(request.types(), ElementsAre("LogDropped"));
    response->add_events()->set_message("7 bytes of the log of rank 0 were dropped: no space");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Logs(connection_, {.job = "demo"}, stopper_, captured_.io), kSuccess);
  EXPECT_EQ(captured_.talk.str(),
            "no such logs; 7 bytes of the log of rank 0 were dropped: no space\n");
}

TEST_F(ChosenLogsTest, OfAJobThatHasNotStarted_SayWhereTheReasonIs) {
  epoch_ = 0;
  server_.logs = [](const v1::GetLogsRequest&, LogWriter*) { return grpc::Status::OK; };
  EXPECT_EQ(Logs(connection_, {.job = "demo"}, stopper_, captured_.io), kSuccess);
  EXPECT_EQ(captured_.talk.str(), "job-7 has not started, and has no logs: phalanx why job-7\n");
}

TEST_F(ChosenLogsTest, Previous_OfTheFirstEpoch_IsRefused) {
  epoch_ = 1;
  EXPECT_EQ(Logs(connection_, {.job = "demo", .previous = true}, stopper_, captured_.io), kFailure);
  EXPECT_EQ(captured_.talk.str(),
            "error: job-7 is in its first epoch, and has no other logs than those: leave "
            "--previous out\n");
}

TEST_F(ChosenLogsTest, Modules_AreTheirRanks) {
  EXPECT_EQ(Logs(connection_, {.job = "demo", .ranks = {5}, .modules = {"vision"}}, stopper_,
                 captured_.io),
            kSuccess);
  EXPECT_THAT(asked_.ranks(), ElementsAre(0, 1, 5));
  EXPECT_EQ(Logs(connection_, {.job = "demo", .modules = {"vison"}}, stopper_, captured_.io),
            kFailure);
  EXPECT_EQ(captured_.talk.str().substr(captured_.talk.str().find("error")),
            "error: job-7 has no module \"vison\"; did you mean vision?\n");
}

TEST(FollowTest, BrokenStream_GoesOnAfterWhatWasPrinted) {
  FakeServer server;
  std::atomic<int> reads = 0;
  server.get = [&](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = AJob(reads < 2 ? v1::JOB_PHASE_RUNNING : v1::JOB_PHASE_SUCCEEDED);
    return grpc::Status::OK;
  };
  std::vector<v1::GetLogsRequest> asked;
  server.logs = [&](const v1::GetLogsRequest& request, LogWriter* writer) {
    asked.push_back(request);
    switch (++reads) {
      case 1:
        writer->Write(Chunk(3, "one\n", "a"));
        writer->Write(Chunk(3, "two\n", "b"));
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
      case 2:
        writer->Write(Chunk(3, "three\n", "c"));
        return grpc::Status::OK;  // an epoch ends, and not the job
      default:
        writer->Write(Chunk(3, "four\n", "d"));
        return grpc::Status::OK;
    }
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "demo", .follow = true}, stopper, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(), "[3] one\n[3] two\n[3] three\n[3] four\n");
  EXPECT_EQ(captured.talk.str(), "the coordinator at " + server.address() +
                                     " does not answer: restarting; trying again\n");
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0].after_size(), 0);
  ASSERT_EQ(asked[1].after_size(), 1);
  EXPECT_EQ(asked[1].after(0).node(), "n");
  EXPECT_EQ(asked[1].after(0).rank(), 3);
  EXPECT_EQ(asked[1].after(0).place(), "b");
  EXPECT_EQ(asked[1].job(), "job-7") << "the name may be of a newer job";
}

TEST(FollowTest, StreamThatAServerCancels_IsOpenedAgain) {
  FakeServer server;
  std::atomic<int> reads = 0;
  server.get = [&](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = AJob(reads < 1 ? v1::JOB_PHASE_RUNNING : v1::JOB_PHASE_SUCCEEDED);
    return grpc::Status::OK;
  };
  server.logs = [&](const v1::GetLogsRequest&, LogWriter* writer) {
    if (++reads == 1) return grpc::Status::CANCELLED;
    writer->Write(Chunk(3, "one\n", "a"));
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "demo", .follow = true}, stopper, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(), "[3] one\n");
}

TEST(FollowTest, NobodyThere_EndsWithinTheTimeout) {
  Connection connection({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(100)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "7", .follow = true}, stopper, captured.io), kUnreachable);
  EXPECT_THAT(captured.talk.str(), HasSubstr("does not answer"));
}

TEST(FollowTest, WhatTheCoordinatorRefuses_IsNotAskedAgain) {
  FakeServer server;
  std::atomic<int> reads = 0;
  server.get = [&](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING);
    return grpc::Status::OK;
  };
  server.logs = [&](const v1::GetLogsRequest&, LogWriter*) {
    ++reads;
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "a newer reader");
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "7", .follow = true}, stopper, captured.io), kFailure);
  EXPECT_EQ(captured.talk.str(),
            "error: a newer reader\nwhat to do: wait and run the command again, and end calls that "
            "nobody needs, such as phalanx watch and phalanx logs -f\n");
  EXPECT_EQ(reads, 1);
}

}  // namespace
}  // namespace phalanx::client

// What one person may have open and on its way: connections, and bytes of requests that have not
// come whole. Others notice nothing.
#include "coordinator/rpc/caller_connections.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"
#include "tests/rpc/raw_http2.h"
#include "tests/rpc/tls_http.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::string> kSam = {"phalanx:submitter/sam"};
const std::vector<std::string> kSue = {"phalanx:submitter/sue"};
const std::vector<std::string> kHere = {"phalanx:worker/here"};

class CountedConnectionsTest : public ::testing::Test {
 protected:
  std::vector<std::string> ended_, reasons_;
  int of_bytes_ = 0;
  CallerConnections connections_{
      {.of_person_max = 3,
       .of_worker_max = 1,
       .person_bytes_max = 10'000,
       .bytes_max = 15'000,
       .worker_bytes_max = 10'000},
      {.end = [this](const std::string& peer) { ended_.push_back(peer); },
       .waits = nullptr,
       .ended =
           [this](const Caller&, bool bytes, const absl::Status& why) {
             of_bytes_ += bytes ? 1 : 0;
             reasons_.emplace_back(why.message());
           }}};
};

TEST_F(CountedConnectionsTest, OneMoreThanThereMayBe_IsClosed_AndOneThatIsClosedMakesRoom) {
  std::vector<std::unique_ptr<transport::OpenConnection>> open;
  for (const char* peer : {"a", "b", "c"}) open.push_back(connections_.Begin(peer, kSam));
  const auto of_sue = connections_.Begin("d", kSue);
  const auto of_worker = connections_.Begin("e", kHere);
  EXPECT_THAT(ended_, IsEmpty());
  const auto fourth = connections_.Begin("f", {"phalanx:viewer/sam"});
  EXPECT_THAT(ended_, ElementsAre("f")) << "a person is the same in all roles";
  EXPECT_THAT(reasons_[0], HasSubstr("sam has 4 connections open; at most 3"));
  const auto second = connections_.Begin("g", kHere);
  EXPECT_THAT(ended_, ElementsAre("f", "g"));
  open.erase(open.begin(), open.begin() + 2);
  const auto next = connections_.Begin("h", kSam);
  EXPECT_THAT(ended_, ElementsAre("f", "g"));
  EXPECT_EQ(of_bytes_, 0);
  EXPECT_EQ(connections_.Begin("i", {"spiffe://other"}), nullptr) << "nobody";
}

TEST_F(CountedConnectionsTest, RequestsThatComeWhole_CountNoLonger) {
  const auto connection = connections_.Begin("a", kSam);
  for (int i = 0; i < 100; ++i) {
    connection->Came(5'100);
    EXPECT_EQ(connections_.RequestCame("a", 5'000), absl::OkStatus());
  }
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_EQ(connections_.RequestCame("of plaintext", 5'000), absl::OkStatus());
}

TEST_F(CountedConnectionsTest, WhoHasMostThatIsNotWhole_IsClosed) {
  const auto little = connections_.Begin("a", kSam), much = connections_.Begin("b", kSam);
  const auto of_sue = connections_.Begin("c", kSue), of_worker = connections_.Begin("d", kHere);
  of_worker->Came(9'000);
  of_sue->Came(4'000);
  much->Came(6'000);
  EXPECT_TRUE(absl::IsResourceExhausted(connections_.RequestCame("a", 10)))
      << "half of what there may be";
  EXPECT_EQ(connections_.RequestCame("c", 10), absl::OkStatus());
  EXPECT_THAT(ended_, IsEmpty());
  little->Came(4'001);
  EXPECT_THAT(ended_, ElementsAre("b"));
  EXPECT_THAT(reasons_[0], HasSubstr("messages of sam have 10001 bytes that have come"));
  EXPECT_THAT(reasons_[0], HasSubstr("b is closed, which has 6000 of them"));
  EXPECT_EQ(of_bytes_, 1);
  EXPECT_EQ(connections_.RequestCame("a", 10), absl::OkStatus());
  // 4001 - 266 of sam and 4000 - 266 of sue are left.
  of_sue->Came(6'000);
  EXPECT_THAT(ended_, ElementsAre("b"));
  little->Came(2'000);
  EXPECT_THAT(ended_, ElementsAre("b", "c")) << "of all people together";
}

TEST_F(CountedConnectionsTest, StreamOfAWorker_MayHaveAnyNumberOfWholeMessages) {
  const auto connection = connections_.Begin("a", kHere);
  for (int i = 0; i < 10'000; ++i) {
    connection->Came(150);
    connections_.MessageCame("a", 100);
  }
  // Heads of frames and records within it are a part of it.
  connection->Came(8'000);
  connection->Came(100);
  connections_.MessageCame("a", 8'000);
  connection->Came(10'000);
  EXPECT_THAT(ended_, IsEmpty());
  connection->Came(1);
  EXPECT_THAT(ended_, ElementsAre("a"));
}

TEST(CallerConnectionsTest, OnlyWhileMuchComes_AreCallsRefused) {
  CallerConnections connections({.person_bytes_max = 10'000, .refused_for = absl::ZeroDuration()},
                                {.end = nullptr, .waits = nullptr, .ended = nullptr});
  const auto connection = connections.Begin("a", kSam);
  connection->Came(9'000);
  EXPECT_EQ(connections.RequestCame("a", 10), absl::OkStatus()) << "it came long ago";
}

TEST(CallerConnectionsTest, WhatCameLongAgo_CountsNoLonger_UnlessARequestIsWaitedFor) {
  std::vector<std::string> ended;
  bool waits = false;
  CallerConnections connections(
      {.person_bytes_max = 10'000, .counts_for = absl::ZeroDuration()},
      {.end = [&ended](const std::string& peer) { ended.push_back(peer); },
       .waits = [&waits](const Caller&) { return waits; },
       .ended = [](const Caller&, bool, const absl::Status&) {}});
  const auto first = connections.Begin("a", kSam), second = connections.Begin("b", kSam);
  for (int i = 0; i < 10; ++i) first->Came(9'000);
  second->Came(8'000);
  EXPECT_THAT(ended, IsEmpty()) << "what others have is looked at again before one is closed";
  waits = true;
  second->Came(2'001);
  EXPECT_THAT(ended, ElementsAre("b"));
}

TEST(CallerConnectionsTest, ConnectionsThatOutliveIt_AreHarmless) {
  std::unique_ptr<transport::OpenConnection> connection;
  {
    CallerConnections connections({.person_bytes_max = 1},
                                  {.end = nullptr, .waits = nullptr, .ended = nullptr});
    connection = connections.Begin("a", kSam);
  }
  connection->Came(100);
}

class ConnectionLimitsTest : public AccessTest {
 protected:
  static constexpr char kList[] = "/phalanx.v1.JobService/ListJobs";
};

TEST_F(ConnectionLimitsTest, RequestsThatAreNotWhole_CostTheirOwnerTheConnection_AndNobodyElse) {
  server_.reset();
  Open([](ServerOptions& options) { options.person_unread_bytes_max = 32 << 10; });
  const transport::TlsFiles sam = authority().User("sam", "submitter");
  const std::shared_ptr<grpc::Channel> of_sam = ChannelOf(sam);
  const std::shared_ptr<grpc::Channel> of_sue = ChannelOf(authority().User("sue", "submitter"));
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  worker.Join("here", 1);
  TlsClient half(server_->port(), sam, "h2");
  ASSERT_TRUE(half.connected());
  half.Send(absl::StrCat(kPreface, Settings(), Headers("/phalanx.v1.JobService/SubmitJob"),
                         PartOfMessage(1 << 20, std::string(10'000, 'a')),
                         Frame(0, 0, 1, std::string(10'000, 'a'))));
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  grpc::Status refused;
  while (refused.ok() && absl::Now() < deadline) refused = Call(of_sam, kList);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("are not whole; at most 16384: ask again in 1 s"));
  EXPECT_THAT(refused.error_details(), HasSubstr("google.rpc.RetryInfo"));
  EXPECT_TRUE(Call(of_sue, kList).ok());

  half.Send(Frame(0, 0, 1, std::string(14'000, 'a')));
  EXPECT_TRUE(half.ReadsToTheEnd());
  EXPECT_EQ(AwaitAudit("audit who=sam role=submitter method=unread outcome=RESOURCE_EXHAUSTED "
                       "reason=\"messages of sam have ",
                       1),
            1);
  EXPECT_THAT(server_->MetricsText(), HasSubstr("phalanx_rpc_handled_total{code="
                                                "\"RESOURCE_EXHAUSTED\",method=\"unread\"} 1"));
  EXPECT_TRUE(Call(of_sam, kList).ok()) << "what was held is free";
  EXPECT_TRUE(Call(of_sue, kList).ok());
  v1::OpenSessionRequest heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_TRUE(worker.Write(heartbeat));
  while (!absl::StrContains(server_->MetricsText(), "\nphalanx_heartbeats_total 1\n") &&
         absl::Now() < deadline) {
    continue;
  }
  EXPECT_THAT(server_->MetricsText(), HasSubstr("\nphalanx_heartbeats_total 1\n"));
}

TEST_F(ConnectionLimitsTest, RequestsThatAreWhole_MayBeAnyNumber) {
  server_.reset();
  Open([](ServerOptions& options) { options.person_unread_bytes_max = 96 << 10; });
  Be("sam", "submitter");
  for (int i = 0; i < 50; ++i) {
    v1::SubmitJobResponse response;
    ASSERT_EQ(Submit(absl::StrCat("no job #", std::string(20'000, '#')), response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(ConnectionLimitsTest, ConnectionsThatCallNobody_AreBounded) {
  server_.reset();
  Open([](ServerOptions& options) { options.person_connections_max = 1; });
  const transport::TlsFiles vera = authority().User("vera", "viewer");
  std::vector<std::unique_ptr<TlsClient>> mute;
  for (int i = 0; i < 2; ++i) {
    mute.push_back(std::make_unique<TlsClient>(server_->port(), vera, "h2"));
    ASSERT_TRUE(mute.back()->connected());
  }
  // In TLS 1.3 a client has finished before the server.
  EXPECT_TRUE(TlsClient(server_->port(), vera, "h2").ReadsToTheEnd());
  EXPECT_EQ(AwaitAudit("audit who=vera role=viewer method=handshake outcome=RESOURCE_EXHAUSTED "
                       "reason=\"vera has 3 connections open; at most 2, ",
                       1),
            1);
  EXPECT_TRUE(Call(ChannelOf(authority().User("sam", "submitter")), kList).ok());
  mute.clear();
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const std::shared_ptr<grpc::Channel> next = ChannelOf(vera);
  while (!Call(next, kList).ok() && absl::Now() < deadline) continue;
  EXPECT_TRUE(Call(next, kList).ok()) << "those that are closed make room";
}

}  // namespace
}  // namespace phalanx::coordinator

// How much one worker's identity may have open and renew, how many calls a connection carries, and
// what becomes of requests that do not come whole. Neighbours notice nothing.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/admission.h"
#include "gmock/gmock.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "tests/rpc/access_fixture.h"
#include "tests/rpc/raw_http2.h"
#include "tests/rpc/tls_http.h"
#include "transport/issuance.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class WorkerLimitsTest : public AccessTest {
 protected:
  // What a worker is told whose session is refused.
  static grpc::Status RefusalOf(FakeWorker& worker) {
    EXPECT_FALSE(worker.Read().has_value());
    return worker.Finish();
  }
  static void ExpectRefused(const grpc::Status& status, const std::string& why) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(status.error_message(), why);
    EXPECT_THAT(status.error_details(), HasSubstr("google.rpc.RetryInfo"));
  }
  void ExpectTold(const std::string& line) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    const auto told = [&] { return ::testing::Value(Audit(), Contains(HasSubstr(line))); };
    while (!told() && absl::Now() < deadline) server_->MetricsText();
    EXPECT_TRUE(told()) << line;
  }
  void ExpectNeighbourJoins() {
    FakeWorker neighbour(ChannelOf(authority().Worker("neighbour")));
    neighbour.Join("neighbour", 1);
  }
};

// A heartbeat that the coordinator has heard, and nothing has ended the session.
void ExpectBeats(FakeWorker& worker, const Server& server, int number) {
  v1::OpenSessionRequest heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_TRUE(worker.Write(heartbeat));
  const std::string counted = absl::StrCat("\nphalanx_heartbeats_total ", number, "\n");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!absl::StrContains(server.MetricsText(), counted) && absl::Now() < deadline) continue;
  EXPECT_THAT(server.MetricsText(), HasSubstr(counted));
}

TEST_F(WorkerLimitsTest, SessionsOfOneWorker_AreBounded_AndHeartbeatsGetThrough) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.workers.sessions_max = 2;
    options.sessions.hello_timeout = absl::Minutes(1);
  });
  const std::shared_ptr<grpc::Channel> to = ChannelOf(authority().Worker("here"));
  FakeWorker worker(to);
  worker.Join("here", 1);
  FakeWorker mute(to);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!absl::StrContains(server_->MetricsText(), "\nphalanx_sessions 2\n") &&
         absl::Now() < deadline) {
    continue;
  }
  FakeWorker third(to);
  ExpectRefused(RefusalOf(third), "here has 2 sessions open; at most 2");
  ExpectTold("audit who=here role=worker method=OpenSession outcome=RESOURCE_EXHAUSTED reason=");
  ExpectBeats(worker, *server_, 1);
  ExpectNeighbourJoins();
}

TEST_F(WorkerLimitsTest, SessionsThatOneWorkerOpensAgainAndAgain_AreBounded) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.workers.sessions = {.calls_per_second = 0.001, .calls_at_once = 2};
  });
  const std::shared_ptr<grpc::Channel> to = ChannelOf(authority().Worker("here"));
  FakeWorker worker(to);
  worker.Join("here", 1);
  FakeWorker other(to);
  other.SayHello(FakeWorker::Hello("there", 1, 1));
  EXPECT_EQ(RefusalOf(other).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  FakeWorker third(to);
  ExpectRefused(RefusalOf(third),
                "here calls more often than 0.001 times a second; ask again in 1 s");
  for (int number = 1; number <= 20; ++number) ExpectBeats(worker, *server_, number);
  ExpectNeighbourJoins();
}

TEST_F(WorkerLimitsTest, ConnectionsOfOneWorker_AreBounded) {
  server_.reset();
  Open([](ServerOptions& options) { options.workers.connections_max = 1; });
  const transport::TlsFiles here = authority().Worker("here");
  FakeWorker worker(ChannelOf(here));
  worker.Join("here", 1);
  FakeWorker other(ChannelOf(here));
  ExpectRefused(RefusalOf(other), "here has 1 connections open; at most 1");
  ExpectBeats(worker, *server_, 1);
  ExpectNeighbourJoins();
}

TEST_F(WorkerLimitsTest, UploadsOfOneWorker_AreBounded_AndCountedWhenTheyEnd) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.workers.uploads = {.calls_per_second = 0.001, .calls_at_once = 1};
  });
  const auto upload = [](const std::shared_ptr<grpc::Channel>& from) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::UploadLogsResponse response;
    const auto stream = v1::WorkerService::NewStub(from)->UploadLogs(&context, &response);
    stream->WritesDone();
    return stream->Finish();
  };
  const std::shared_ptr<grpc::Channel> to = ChannelOf(authority().Worker("here"));
  EXPECT_TRUE(upload(to).ok());
  EXPECT_THAT(server_->MetricsText(),
              HasSubstr("phalanx_rpc_handled_total{code=\"OK\",method=\"UploadLogs\"} 1"));
  ExpectRefused(upload(to), "here calls more often than 0.001 times a second; ask again in 1 s");
  ExpectTold("audit who=here role=worker method=UploadLogs outcome=RESOURCE_EXHAUSTED reason=");
  EXPECT_TRUE(upload(ChannelOf(authority().Worker("neighbour"))).ok());
}

TEST_F(WorkerLimitsTest, RenewalsOfOneWorker_AreBounded) {
  const std::string folder = support::MakeFolder("renewals");
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder + "/join-tokens");
    options.join.certificate_life = absl::Hours(24);
    options.join.renewals_per_hour = 1;
  });
  const std::string path = "/phalanx.v1.JoinService/RenewCertificate";
  const std::shared_ptr<grpc::Channel> to = ChannelOf(authority().Worker("here"));
  v1::RenewCertificateRequest request;
  request.set_certificate_request(transport::MakeKeyAndRequest()->request);
  const std::string bytes = request.SerializeAsString();
  EXPECT_EQ(Call(to, path, bytes).error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << "it came of no token";
  ExpectRefused(Call(to, path, bytes),
                "here has renewed its certificate 1 times within the hour; ask again in a minute");
  EXPECT_EQ(Call(ChannelOf(authority().Worker("neighbour")), path, bytes).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(AdmissionTest, TenThousandWorkers_GetInAtOnce) {
  UnreadRequests unread({}, [](const Caller&, int64_t, const absl::Status&) {});
  Admission admission({}, 256, {}, unread, [](const std::string&) { return true; });
  for (int i = 0; i < 10'000; ++i) {
    const Caller node = Identity{absl::StrCat("node-", i), Role::kWorker};
    ASSERT_TRUE(admission.Open(WorkerStream::kSession, node, absl::StrCat("peer-", i)).ok()) << i;
    ASSERT_TRUE(admission.Open(WorkerStream::kUpload, node, absl::StrCat("peer-", i)).ok()) << i;
  }
}

TEST(AdmissionTest, StreamThatHasEnded_MakesRoom) {
  UnreadRequests unread({}, [](const Caller&, int64_t, const absl::Status&) {});
  Admission admission({}, 256, {.uploads_max = 1}, unread, [](const std::string&) { return true; });
  const Caller here = Identity{"here", Role::kWorker};
  EXPECT_TRUE(admission.Open(WorkerStream::kUpload, here, "peer").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(admission.Open(WorkerStream::kUpload, here, "peer")));
  admission.Close(WorkerStream::kUpload, here);
  EXPECT_TRUE(admission.Open(WorkerStream::kUpload, here, "peer").ok());
}

TEST(AdmissionTest, PlansOfOnePerson_AreBounded_AndOthersNoticeNothing) {
  UnreadRequests unread({}, [](const Caller&, int64_t, const absl::Status&) {});
  Admission admission(
      {}, 256, {}, unread, [](const std::string&) { return true; }, 2);
  const Caller vera = Identity{"vera", Role::kViewer}, sam = Identity{"sam", Role::kSubmitter};
  EXPECT_TRUE(admission.BeginPlan(vera).ok());
  EXPECT_TRUE(admission.BeginPlan(vera).ok());
  EXPECT_EQ(admission.BeginPlan(vera),
            absl::ResourceExhaustedError("vera has 2 plans made; at most 2 at one time: ask again "
                                         "when one of them is there"));
  EXPECT_TRUE(admission.BeginPlan(sam).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(admission.BeginPlan({}).ok()) << "nobody knows who";
  admission.EndPlan(vera);
  EXPECT_TRUE(admission.BeginPlan(vera).ok());
}

TEST(AdmissionTest, OnceItIsStopped_NobodyIsLetIn) {
  UnreadRequests unread({}, [](const Caller&, int64_t, const absl::Status&) {});
  Admission admission({}, 256, {}, unread, [](const std::string&) { return true; });
  admission.Stop(absl::UnavailableError("stopping"));
  for (const Caller& caller : {Caller(), Caller(Identity{"here", Role::kWorker})}) {
    EXPECT_TRUE(absl::IsUnavailable(admission.Take(caller, "peer", 0)));
    EXPECT_TRUE(absl::IsUnavailable(admission.TakeOfWorker(caller, "peer")));
    for (const WorkerStream stream : {WorkerStream::kSession, WorkerStream::kUpload})
      EXPECT_TRUE(absl::IsUnavailable(admission.Open(stream, caller, "peer")));
  }
}

TEST(UnreadRequestsTest, RequestThatDoesNotCome_IsToldOnce_AndCountedUntilItIsForgotten) {
  int64_t told = 0;
  UnreadRequests unread({.of_caller_max = 2},
                        [&](const Caller&, int64_t count, const absl::Status&) { told += count; });
  const Caller sam = Identity{"sam", Role::kSubmitter}, sue = Identity{"sue", Role::kSubmitter};
  const SteadyTime start;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(unread.Begin(sam, start).ok());
    unread.End(sam);
  }
  EXPECT_TRUE(unread.Begin(sam, start).ok());
  EXPECT_TRUE(unread.Begin(sam, start).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(unread.Begin(sam, start)));
  EXPECT_TRUE(unread.Begin(sue, start).ok());
  unread.End(sue);
  unread.Look(start + std::chrono::seconds(29));
  EXPECT_EQ(told, 0);
  unread.Look(start + std::chrono::seconds(30));
  unread.Look(start + std::chrono::seconds(31));
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(absl::IsResourceExhausted(unread.Begin(sam, start + std::chrono::seconds(32))));
  EXPECT_TRUE(unread.Begin(sam, start + std::chrono::seconds(631)).ok());
}

TEST_F(WorkerLimitsTest, RequestThatIsTooLarge_IsRecorded) {
  server_.reset();
  Open([](ServerOptions& options) { options.unread.patience = absl::Milliseconds(1); });
  Be("sam", "submitter");
  v1::SubmitJobResponse response;
  EXPECT_EQ(Submit(std::string(9 << 20, '#'), response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectTold(
      "audit who=sam role=submitter method=unread outcome=DEADLINE_EXCEEDED reason=\"1 request "
      "did not come whole within 1ms: too large, cut off or too slow\"");
  EXPECT_THAT(server_->MetricsText(), HasSubstr("phalanx_rpc_handled_total{code="
                                                "\"DEADLINE_EXCEEDED\",method=\"unread\"} 1"));
  EXPECT_TRUE(disk->records().empty()) << "nothing has changed";
}

// Some kilobytes would be megabytes before anybody looks at their size.
TEST_F(WorkerLimitsTest, RequestThatIsCompressed_IsRefused) {
  Be("sam", "submitter");
  v1::SubmitJobRequest request;
  request.mutable_document()->set_text(JobText("a") + "#" + std::string(4 << 20, ' '));
  v1::SubmitJobResponse response;
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    grpc::ClientContext context;
    SetDeadline(context);
    context.set_compression_algorithm(algorithm);
    EXPECT_EQ(jobs->SubmitJob(&context, request, &response).error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_TRUE(disk->records().empty()) << "nothing has changed";
  MustSubmit(JobText("a"));
}

// Answers pings and sends its message byte by byte, for as long as it is let.
TEST_F(WorkerLimitsTest, WhoeverAnswersPingsAndDrips_IsRecorded_AndBounded) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.ping_interval = absl::Seconds(1);
    options.unread = {.of_caller_max = 1, .patience = absl::Milliseconds(100)};
  });
  const transport::TlsFiles sam = authority().User("sam", "submitter");
  TlsClient drips(server_->port(), sam, "h2");
  ASSERT_TRUE(drips.connected());
  drips.Send(absl::StrCat(kPreface, Settings(), Headers("/phalanx.v1.JobService/SubmitJob"),
                          PartOfMessage(1000, "a")));
  const auto told = [&] {
    server_->MetricsText();
    return ::testing::Value(Audit(), Contains(HasSubstr("who=sam role=submitter method=unread ")));
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  std::string got;
  int pings = 0;
  while ((pings == 0 || !told()) && absl::Now() < deadline) {
    const std::string more = drips.ReadSome();
    ASSERT_NE(more, "") << "the connection is closed, or silent for long";
    got += more;
    while (got.size() >= 9) {
      const auto at = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(got[i])); };
      const size_t size = at(0) << 16 | at(1) << 8 | at(2);
      if (got.size() < 9 + size) break;
      if (at(3) == 6 && at(4) == 0) {  // a ping, to be answered
        ++pings;
        drips.Send(absl::StrCat(Frame(6, 1, 0, got.substr(9, size)), Frame(0, 0, 1, "a")));
      }
      got.erase(0, 9 + size);
    }
  }
  EXPECT_TRUE(told());
  EXPECT_GT(pings, 0);
  const grpc::Status refused = Call(ChannelOf(sam), "/phalanx.v1.JobService/ListJobs");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(),
            "sam has begun 1 calls whose requests have not come; at most 1: ask again in 10m");
  EXPECT_TRUE(disk->records().empty()) << "nothing has changed";
  Be("sue", "submitter");
  MustSubmit(JobText("b"));
}

TEST_F(WorkerLimitsTest, CallsOverOneConnection_AreBounded_AndOneMoreWaitsForItsTurn) {
  server_.reset();
  Open([](ServerOptions& options) { options.streams_per_connection_max = 2; });
  Be("sam", "submitter");
  MustSubmit(JobText("a"));
  v1::WatchJobRequest watch;
  watch.set_job("a");
  grpc::ClientContext contexts[2];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>>> open;
  v1::WatchJobResponse state;
  for (grpc::ClientContext& context : contexts) {
    SetDeadline(context);
    open.push_back(jobs->WatchJob(&context, watch));
    ASSERT_TRUE(open.back()->Read(&state));
  }
  grpc::CompletionQueue queue;
  grpc::ClientContext waiting;
  SetDeadline(waiting);
  v1::GetJobRequest get;
  get.set_job("a");
  v1::GetJobResponse got;
  grpc::Status status;
  const auto third = jobs->AsyncGetJob(&waiting, get, &queue);
  third->Finish(&got, &status, nullptr);
  const std::shared_ptr<grpc::Channel> other = ChannelOf(authority().User("vera", "viewer"));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Call(other, "/phalanx.v1.JobService/ListJobs").ok());
  void* tag = nullptr;
  bool ok = false;
  EXPECT_EQ(queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now()),
            grpc::CompletionQueue::TIMEOUT);
  contexts[0].TryCancel();
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
  contexts[1].TryCancel();
}

TEST_F(WorkerLimitsTest, StreamsThatEndWell_AreCounted) {
  Be("sam", "submitter");
  MustSubmit(JobText("a"));
  ASSERT_TRUE(Cancel("a").ok());
  grpc::ClientContext of_watch, of_logs, of_session;
  for (grpc::ClientContext* context : {&of_watch, &of_logs, &of_session}) SetDeadline(*context);
  v1::WatchJobRequest watch;
  watch.set_job("a");
  const auto watching = jobs->WatchJob(&of_watch, watch);
  v1::WatchJobResponse state;
  while (watching->Read(&state)) continue;
  EXPECT_TRUE(watching->Finish().ok());
  v1::GetLogsRequest logs;
  logs.set_job("a");
  const auto reading = jobs->GetLogs(&of_logs, logs);
  v1::GetLogsResponse chunk;
  while (reading->Read(&chunk)) continue;
  EXPECT_TRUE(reading->Finish().ok());
  const auto session =
      v1::WorkerService::NewStub(ChannelOf(authority().Worker("here")))->OpenSession(&of_session);
  session->WritesDone();
  v1::OpenSessionResponse response;
  while (session->Read(&response)) continue;
  EXPECT_TRUE(session->Finish().ok());
  const std::string metrics = server_->MetricsText();
  for (const char* method : {"WatchJob", "GetLogs", "OpenSession"}) {
    EXPECT_THAT(metrics, HasSubstr(absl::StrCat("phalanx_rpc_handled_total{code=\"OK\",method=\"",
                                                method, "\"} 1")));
  }
}

}  // namespace
}  // namespace phalanx::coordinator

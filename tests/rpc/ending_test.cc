// Calls that are open, or come, while a coordinator ends: UNAVAILABLE, so that callers go to the
// one that follows.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/standby.h"
#include "core/posix/socket.h"
#include "core/posix/unique_fd.h"
#include "tests/rpc/fixture.h"
#include "tests/rpc/plain_http.h"
#include "tests/rpc/raw_http2.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AnyOf;

constexpr uint8_t kHeaders = 1, kSettings = 4, kPing = 6, kAck = 1, kEndStream = 1;
// The setting that a stream may get no byte of a message.
constexpr absl::string_view kTakesNothing("\0\4\0\0\0\0", 6);

// A caller that does as it likes, whatever the server tells it.
class StubbornCaller {
 public:
  explicit StubbornCaller(int port, absl::string_view settings = "") : fd_(Connect(port)) {
    Send(absl::StrCat(kPreface, Frame(kSettings, 0, 0, settings)));
  }
  void Send(const std::string& bytes) { send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // The server has read all that was sent.
  void AwaitRead() {
    Send(Frame(kPing, 0, 0, "12345678"));
    Await(kPing, kAck);
  }
  // Until the server has sent such a frame.
  void Await(uint8_t type, uint8_t flags = 0) {
    while (!HasFrame(sent_, type, flags)) ASSERT_TRUE(Receive());
  }
  // What the call on stream 1 ends with; empty: the connection ends first.
  std::string AwaitStatus() {
    while (StatusIn(sent_).empty() && Receive()) continue;
    return StatusIn(sent_);
  }

 private:
  // False: the server has closed the connection.
  bool Receive() {
    char buffer[4096];
    const ssize_t n = recv(fd_.get(), buffer, sizeof(buffer), 0);
    EXPECT_FALSE(n < 0 && errno == EAGAIN) << "the server says nothing";
    if (n > 0) sent_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  const UniqueFd fd_;
  std::string sent_;  // by the server
};

std::string BeginningOfACall() { return Headers("/phalanx.v1.JobService/ListNodes"); }
std::string ItsRequest() { return Frame(0, kEndStream, 1, std::string(5, '\0')); }

class EndingTest : public RpcTest {
 protected:
  // The coordinator refuses calls once this returns, and closes no connection until the test ends:
  // a watcher does not take what it is told.
  void BeginToStop() {
    MustSubmit(JobText("a"));
    v1::WatchJobRequest request;
    request.set_job("a");
    const std::string bytes = request.SerializeAsString();
    watcher_ = std::make_unique<StubbornCaller>(server_->port(), kTakesNothing);
    watcher_->Send(absl::StrCat(Headers("/phalanx.v1.JobService/WatchJob"),
                                PartOfMessage(static_cast<uint32_t>(bytes.size()), bytes)));
    watcher_->Await(kHeaders);
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stream = jobs->WatchJob(&context, request);
    v1::WatchJobResponse response;
    ASSERT_TRUE(stream->Read(&response));
    stopping_ = std::jthread([this] { server_->Shutdown(support::kPatience); });
    // Calls are refused before watches end.
    while (stream->Read(&response)) continue;
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  void TearDown() override {
    watcher_.reset();
    if (stopping_.joinable()) stopping_.join();
    RpcTest::TearDown();
  }

 private:
  std::unique_ptr<StubbornCaller> watcher_;
  std::jthread stopping_;
};

TEST_F(EndingTest, RequestThatComesWhileTheCoordinatorStops_IsUnavailable) {
  StubbornCaller caller(server_->port());
  caller.Send(BeginningOfACall());
  caller.AwaitRead();
  BeginToStop();
  caller.Send(ItsRequest());
  EXPECT_EQ(caller.AwaitStatus(), "14");
}

TEST_F(EndingTest, CallThatComesWhileTheCoordinatorStops_IsUnavailable) {
  StubbornCaller caller(server_->port());
  caller.AwaitRead();
  BeginToStop();
  caller.Send(absl::StrCat(BeginningOfACall(), ItsRequest()));
  EXPECT_EQ(caller.AwaitStatus(), "14");
}

// Where gRPC shuts down a server itself, it ends such a call with CANCELLED.
TEST_F(EndingTest, CallWhoseRequestDoesNotCome_EndsWithItsConnection) {
  StubbornCaller caller(server_->port());
  caller.Send(BeginningOfACall());
  caller.AwaitRead();
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_THAT(caller.AwaitStatus(), AnyOf("", "14"));
}

TEST(StandbyEndingTest, CallThatComesWhileItEnds_IsUnavailable) {
  const UniqueFd listening = *Listen("127.0.0.1", 0);
  ServerOptions options;
  options.listening = listening.get();
  Metrics metrics;
  std::unique_ptr<StandbyServer> standby = *StandbyServer::Start(options, metrics);
  StubbornCaller caller(PortOf(listening.get()));
  caller.AwaitRead();
  caller.Send(BeginningOfACall());
  standby.reset();
  EXPECT_THAT(caller.AwaitStatus(), AnyOf("", "14"));
}

// A worker that sends logs waits for lines, which may take hours.
TEST_F(RpcTest, UploadThatIsQuiet_IsUnavailable_AndHoldsNobodyUp) {
  const auto worker = v1::WorkerService::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::UploadLogsResponse response;
  const auto upload = worker->UploadLogs(&context, &response);
  v1::ListNodesResponse nodes;
  grpc::ClientContext nodes_context;
  SetDeadline(nodes_context);
  ASSERT_TRUE(jobs->ListNodes(&nodes_context, {}, &nodes).ok()) << "the upload came before";
  const absl::Time asked = absl::Now();
  server_->Shutdown(absl::Seconds(10));
  EXPECT_LT(absl::Now() - asked, absl::Seconds(8));
  EXPECT_EQ(upload->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace phalanx::coordinator

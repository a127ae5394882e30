// Calls that are open, or come, while a coordinator ends: UNAVAILABLE, so that callers go to the
// one that follows.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/standby.h"
#include "core/posix/socket.h"
#include "core/posix/unique_fd.h"
#include "tests/rpc/fixture.h"
#include "tests/rpc/plain_http.h"
#include "tests/rpc/raw_http2.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AnyOf;

constexpr uint8_t kPing = 6, kGoaway = 7, kAck = 1, kEndStream = 1;

// A caller that goes on with a connection though it was told that the server goes.
class StubbornCaller {
 public:
  explicit StubbornCaller(int port) : fd_(Connect(port)) {
    Send(absl::StrCat(kPreface, Settings()));
  }
  void Send(const std::string& bytes) { send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // False: the server has closed the connection, or says nothing.
  bool Receive() {
    char buffer[4096];
    const ssize_t n = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (n > 0) sent_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  // The server has read all that was sent.
  void AwaitRead() {
    Send(Frame(kPing, 0, 0, "12345678"));
    while (!HasFrame(sent_, kPing, kAck)) ASSERT_TRUE(Receive());
  }
  // What the call on stream 1 ends with, where `late` is sent once the server says that it goes;
  // empty: the connection ends first.
  std::string AwaitStatus(const std::string& late) {
    bool is_sent = false;
    while (StatusIn(sent_).empty()) {
      if (!Receive()) return "";
      if (is_sent || !HasFrame(sent_, kGoaway)) continue;
      is_sent = true;
      Send(late);
    }
    return StatusIn(sent_);
  }

 private:
  const UniqueFd fd_;
  std::string sent_;  // by the server
};

std::string BeginningOfACall() { return Headers("/phalanx.v1.JobService/ListNodes"); }

TEST_F(RpcTest, RequestThatComesWhileTheCoordinatorStops_IsUnavailable) {
  StubbornCaller caller(server_->port());
  caller.Send(BeginningOfACall());
  caller.AwaitRead();
  const std::jthread stopping([this] { server_->Shutdown(absl::Seconds(5)); });
  const std::string request = Frame(0, kEndStream, 1, std::string(5, '\0'));
  EXPECT_THAT(caller.AwaitStatus(request), AnyOf("", "14"));
}

TEST_F(RpcTest, CallThatComesWhileTheCoordinatorStops_IsUnavailable) {
  StubbornCaller caller(server_->port());
  caller.AwaitRead();
  const std::jthread stopping([this] { server_->Shutdown(absl::Seconds(5)); });
  EXPECT_THAT(caller.AwaitStatus(BeginningOfACall()), AnyOf("", "14"));
}

TEST(StandbyEndingTest, CallThatComesWhileItEnds_IsUnavailable) {
  const UniqueFd listening = *Listen("127.0.0.1", 0);
  ServerOptions options;
  options.listening = listening.get();
  Metrics metrics;
  std::unique_ptr<StandbyServer> standby = *StandbyServer::Start(options, metrics);
  StubbornCaller caller(PortOf(listening.get()));
  caller.AwaitRead();
  const std::jthread ending([&] { standby.reset(); });
  EXPECT_THAT(caller.AwaitStatus(BeginningOfACall()), AnyOf("", "14"));
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

// How much log the uploads of one worker bring in.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LogVolumeTest : public AccessTest {
 protected:
  // One job with a reader of its logs, on a node of its own.
  struct Reading {
    std::unique_ptr<FakeWorker> worker;
    std::string fetch;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GetLogsResponse>> logs;
  };
  std::unique_ptr<Reading> Begin(const std::string& node) {
    auto reading = std::make_unique<Reading>();
    reading->worker = std::make_unique<FakeWorker>(ChannelOf(authority().Worker(node)), 60);
    reading->worker->Join(node, 1);
    MustSubmit(JobText(absl::StrCat("of-", node)));
    reading->worker->Ready(reading->worker->TakeAssignment(), 0);
    v1::GetLogsRequest request;
    request.set_job(absl::StrCat("of-", node));
    SetDeadline(reading->context, 60);
    reading->logs = jobs->GetLogs(&reading->context, request);
    const v1::Command fetch = reading->worker->Command();
    reading->worker->Done(fetch);
    reading->fetch = fetch.fetch_logs().fetch_id();
    return reading;
  }
  grpc::Status Upload(const std::string& node, const std::string& fetch, int messages,
                      size_t bytes) {
    grpc::ClientContext context;
    SetDeadline(context, 60);
    v1::UploadLogsResponse response;
    const auto upload = v1::WorkerService::NewStub(ChannelOf(authority().Worker(node)))
                            ->UploadLogs(&context, &response);
    v1::UploadLogsRequest chunk;
    chunk.set_fetch_id(fetch);
    for (int i = 0; i < messages; ++i) {
      chunk.set_text(TextOf(i, bytes));
      upload->Write(chunk);
    }
    upload->WritesDone();
    return upload->Finish();
  }
  static std::string TextOf(int message, size_t bytes) {
    return std::string(bytes, static_cast<char>('a' + message % 26));
  }
  // Whether what comes is what so many messages had, in their order.
  static bool Reads(Reading& reading, int messages, size_t bytes) {
    std::string text, wanted;
    v1::GetLogsResponse response;
    while (reading.logs->Read(&response)) text += response.text();
    EXPECT_TRUE(reading.logs->Finish().ok());
    for (int i = 0; i < messages; ++i) wanted += TextOf(i, bytes);
    return text == wanted;
  }
};

TEST_F(LogVolumeTest, LogsOfOneWorker_AreReadAtARate_AndNothingIsLost) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.workers.upload_bytes_per_second = 64 << 10;
    options.sessions.heartbeat_timeout = absl::Minutes(10);
  });
  Be("sam", "submitter");
  const std::unique_ptr<Reading> quiet = Begin("quiet");
  const std::jthread of_quiet(
      [&] { EXPECT_TRUE(Upload("quiet", quiet->fetch, 4, 64 << 10).ok()); });
  EXPECT_TRUE(Reads(*quiet, 4, 64 << 10));
  EXPECT_THAT(server_->MetricsText(), HasSubstr("\nphalanx_log_upload_waits_total 0\n"));

  const std::unique_ptr<Reading> loud = Begin("loud");
  const std::jthread of_loud([&] { EXPECT_TRUE(Upload("loud", loud->fetch, 40, 16 << 10).ok()); });
  EXPECT_TRUE(Reads(*loud, 40, 16 << 10)) << "whatever the pauses between them";
  EXPECT_THAT(server_->MetricsText(), Not(HasSubstr("\nphalanx_log_upload_waits_total 0\n")));
}

// Questions whether somebody still reads are messages without text, and cost all the same.
TEST_F(LogVolumeTest, MessagesWithoutText_CountToo) {
  server_.reset();
  Open([](ServerOptions& options) { options.workers.upload_bytes_per_second = 4 << 10; });
  Be("sam", "submitter");
  const std::unique_ptr<Reading> reading = Begin("empty");
  const std::jthread upload([&] { EXPECT_TRUE(Upload("empty", reading->fetch, 40, 0).ok()); });
  EXPECT_TRUE(Reads(*reading, 0, 0));
  EXPECT_THAT(server_->MetricsText(), Not(HasSubstr("\nphalanx_log_upload_waits_total 0\n")));
}

}  // namespace
}  // namespace phalanx::coordinator

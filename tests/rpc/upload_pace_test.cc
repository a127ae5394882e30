// How much log the uploads of one worker bring in.
#include "coordinator/rpc/upload_pace.h"

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

TEST(UploadPaceTest, WhoeverHasSentTooMuch_WaitsUntilItsStoreHasFilled) {
  UploadPace pace(100);
  const Caller here = Identity{"here", Role::kWorker}, there = Identity{"there", Role::kWorker};
  const SteadyTime start;
  const auto take = [&](const Caller& caller, int64_t bytes, absl::Duration since) {
    return pace.Take(caller, bytes, start + absl::ToChronoNanoseconds(since));
  };
  EXPECT_EQ(take(here, 800, absl::ZeroDuration()), absl::ZeroDuration()) << "at once";
  EXPECT_EQ(take(here, 50, absl::ZeroDuration()), absl::Milliseconds(500));
  EXPECT_EQ(take(here, 0, absl::Milliseconds(300)), absl::Milliseconds(200));
  EXPECT_EQ(take(there, 800, absl::Milliseconds(300)), absl::ZeroDuration()) << "somebody else";
  EXPECT_EQ(take(here, 0, absl::Milliseconds(500)), absl::ZeroDuration());
  EXPECT_EQ(take(here, 900, absl::Hours(1)), absl::Seconds(1)) << "no more than 8 s are kept";
  EXPECT_EQ(take(std::nullopt, 1'000'000, absl::Hours(1)), absl::ZeroDuration()) << "in plaintext";
  EXPECT_EQ(UploadPace(0).Take(here, 1'000'000, start), absl::ZeroDuration()) << "no limit";
}

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
      chunk.set_text(std::string(bytes, 'a'));
      upload->Write(chunk);
    }
    upload->WritesDone();
    return upload->Finish();
  }
  static size_t ReadAll(Reading& reading) {
    size_t bytes = 0;
    v1::GetLogsResponse response;
    while (reading.logs->Read(&response)) bytes += response.text().size();
    EXPECT_TRUE(reading.logs->Finish().ok());
    return bytes;
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
  EXPECT_EQ(ReadAll(*quiet), size_t{256} << 10);
  EXPECT_THAT(server_->MetricsText(), HasSubstr("\nphalanx_log_upload_waits_total 0\n"));

  const std::unique_ptr<Reading> loud = Begin("loud");
  const std::jthread of_loud([&] { EXPECT_TRUE(Upload("loud", loud->fetch, 40, 16 << 10).ok()); });
  EXPECT_EQ(ReadAll(*loud), size_t{640} << 10);
  EXPECT_THAT(server_->MetricsText(), Not(HasSubstr("\nphalanx_log_upload_waits_total 0\n")));
}

// Questions whether somebody still reads are messages without text, and cost all the same.
TEST_F(LogVolumeTest, MessagesWithoutText_CountToo) {
  server_.reset();
  Open([](ServerOptions& options) { options.workers.upload_bytes_per_second = 4 << 10; });
  Be("sam", "submitter");
  const std::unique_ptr<Reading> reading = Begin("empty");
  const std::jthread upload([&] { EXPECT_TRUE(Upload("empty", reading->fetch, 40, 0).ok()); });
  EXPECT_EQ(ReadAll(*reading), 0u);
  EXPECT_THAT(server_->MetricsText(), Not(HasSubstr("\nphalanx_log_upload_waits_total 0\n")));
}

}  // namespace
}  // namespace phalanx::coordinator

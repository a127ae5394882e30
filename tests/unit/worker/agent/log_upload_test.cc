// Uploads of logs against a coordinator that only receives them.
#include "worker/agent/log_upload.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::agent {
namespace {

constexpr JobId kUploadedJob{7};

// Knows which fetches are being uploaded.
class Receiver final : public v1::WorkerService::Service {
 public:
  Receiver() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Receiver() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  std::shared_ptr<grpc::Channel> Connect() const {
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_),
                               grpc::InsecureChannelCredentials());
  }
  grpc::Status UploadLogs(grpc::ServerContext*, grpc::ServerReader<v1::UploadLogsRequest>* reader,
                          v1::UploadLogsResponse*) override {
    v1::UploadLogsRequest message;
    if (!reader->Read(&message)) return grpc::Status::OK;
    const std::string fetch = message.fetch_id();
    {
      MutexLock lock(&mu_);
      open_.insert(fetch);
      changed_.SignalAll();
    }
    while (reader->Read(&message)) continue;
    MutexLock lock(&mu_);
    open_.erase(fetch);
    changed_.SignalAll();
    return grpc::Status::OK;
  }
  // Waits until exactly these are under way; false: they are not in time.
  bool AwaitOpen(const std::set<std::string>& fetches) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(&mu_);
    while (open_ != fetches) {
      if (changed_.WaitUntil(&mu_, give_up)) return open_ == fetches;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::set<std::string> open_ ABSL_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Of one upload it takes the first text, and the others once it is told to.
class SlowReceiver final : public v1::WorkerService::Service {
 public:
  SlowReceiver() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SlowReceiver() override {
    GoOn();
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }

  std::shared_ptr<grpc::Channel> Connect() const {
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_),
                               grpc::InsecureChannelCredentials());
  }
  grpc::Status UploadLogs(grpc::ServerContext*, grpc::ServerReader<v1::UploadLogsRequest>* reader,
                          v1::UploadLogsResponse*) override {
    v1::UploadLogsRequest message;
    while (reader->Read(&message)) {
      MutexLock lock(&mu_);
      begun_ = true;
      text_ += message.text();
      changed_.SignalAll();
      while (!text_.empty() && !goes_on_) changed_.Wait(&mu_);
    }
    MutexLock lock(&mu_);
    ended_ = true;
    changed_.SignalAll();
    return grpc::Status::OK;
  }
  void GoOn() {
    MutexLock lock(&mu_);
    goes_on_ = true;
    changed_.SignalAll();
  }
  bool AwaitBegin() {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(&mu_);
    while (!begun_ && !changed_.WaitUntil(&mu_, give_up)) continue;
    return begun_;
  }
  bool AwaitText() {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(&mu_);
    while (text_.empty() && !changed_.WaitUntil(&mu_, give_up)) continue;
    return !text_.empty();
  }
  // All of it, once the upload has ended.
  std::string AwaitEnd() {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(&mu_);
    while (!ended_ && !changed_.WaitUntil(&mu_, give_up)) continue;
    EXPECT_TRUE(ended_);
    return text_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::string text_ ABSL_GUARDED_BY(mu_);
  bool goes_on_ ABSL_GUARDED_BY(mu_) = false;
  bool begun_ ABSL_GUARDED_BY(mu_) = false, ended_ ABSL_GUARDED_BY(mu_) = false;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// The coordinator reads nothing of it for a while, since its reader is slow or the node has sent
// much.
TEST(LogUploadTest, UploadThatWaitsAndIsOvertakenByRotation_GoesOnInOrderWithWhatIsLeft) {
  constexpr size_t kLineBytes = 64, kLinesOfFile = 8192, kFiles = 32;
  constexpr size_t kLines = kFiles * kLinesOfFile;
  const std::string state = support::MakeFolder("uploads");
  const auto spool = LogSpool::Open(StoreFolder(state, 1), kUploadedJob, Epoch{1}, 0,
                                    static_cast<int64_t>(2 * kLinesOfFile * kLineBytes));
  ASSERT_TRUE(spool.ok()) << spool.status();
  const auto append = [&](size_t first, size_t end) {
    std::string text;
    for (size_t line = first; line < end; ++line) absl::StrAppendFormat(&text, "%063d\n", line);
    (*spool)->Append(text);
  };
  append(0, 16);
  LogActivity activity;
  activity.ProcessBegan(kUploadedJob);
  SlowReceiver receiver;
  LogUploader uploader(state, activity);
  ASSERT_TRUE(
      uploader.Start(receiver.Connect(), 1, {.fetch_id = "f", .job = kUploadedJob, .follow = true})
          .ok());
  ASSERT_TRUE(receiver.AwaitText());
  append(16, kLines);
  activity.ProcessEnded(kUploadedJob);
  receiver.GoOn();
  const std::string text = receiver.AwaitEnd();

  ASSERT_EQ(text.size() % kLineBytes, 0u);
  size_t next = 0, gaps = 0;
  for (size_t at = 0; at < text.size(); at += kLineBytes) {
    size_t line = 0;
    ASSERT_TRUE(absl::SimpleAtoi(text.substr(at, kLineBytes - 1), &line)) << "at " << at;
    if (line != next) {
      ++gaps;
      ASSERT_GT(line, next) << "twice, or out of turn";
      EXPECT_EQ(next % kLinesOfFile, 0u) << "of the file that it read it has all";
      EXPECT_EQ(line % kLinesOfFile, 0u) << "and of the next one";
    }
    next = line + 1;
  }
  EXPECT_EQ(next, kLines);
  EXPECT_GT(gaps, 0u) << "it was not overtaken";
  EXPECT_EQ(uploader.bytes_sent(), static_cast<int64_t>(text.size()));
}

// A job that has ended, whose one process has not, and an upload of what its rank wrote last.
class EndedJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto spool = LogSpool::Open(StoreFolder(state_, 1), kUploadedJob, Epoch{1}, 0, 4096);
    ASSERT_TRUE(spool.ok()) << spool.status();
    spool_ = *std::move(spool);
    spool_->Append("does its last step\n");
    activity_.ProcessBegan(kUploadedJob);
    receiver_.GoOn();
    ASSERT_TRUE(uploader_
                    .Start(receiver_.Connect(), 1,
                           {.fetch_id = "f", .job = kUploadedJob, .ended = true, .tail = 1})
                    .ok());
  }

  const std::string state_ = support::MakeFolder("uploads");
  std::unique_ptr<LogSpool> spool_;
  LogActivity activity_;
  SlowReceiver receiver_;
  LogUploader uploader_{state_, activity_};
};

// Else whoever reads its logs misses how its ranks ended.
TEST_F(EndedJobTest, IsReadOnceItsProcessesHaveEnded) {
  ASSERT_TRUE(receiver_.AwaitBegin());
  spool_->Append("ends: OK\n");
  activity_.ProcessEnded(kUploadedJob);
  EXPECT_EQ(receiver_.AwaitEnd(), "ends: OK\n");
}

TEST_F(EndedJobTest, WhoseProcessesStay_IsReadAllTheSame) {
  EXPECT_EQ(receiver_.AwaitEnd(), "does its last step\n");
}

// Else followers that were left behind keep out everybody after them.
TEST(LogUploadTest, OneMoreThanMayBeUnderWay_CutsTheOldest) {
  Receiver receiver;
  LogActivity activity;
  activity.ProcessBegan(kUploadedJob);
  const std::shared_ptr<grpc::Channel> channel = receiver.Connect();
  LogUploader uploader(support::MakeFolder("uploads"), activity);
  const auto follow = [&](size_t number) {
    return uploader.Start(
        channel, 1,
        {.fetch_id = absl::StrCat("fetch-", number), .job = kUploadedJob, .follow = true});
  };
  std::set<std::string> open;
  for (size_t i = 0; i < LogUploader::kUploadsMax; ++i) {
    ASSERT_TRUE(follow(i).ok());
    open.insert(absl::StrCat("fetch-", i));
    ASSERT_TRUE(receiver.AwaitOpen(open));
  }
  for (size_t i = 0; i < 3; ++i) {
    const size_t next = LogUploader::kUploadsMax + i;
    ASSERT_TRUE(follow(next).ok());
    open.erase(absl::StrCat("fetch-", i));
    open.insert(absl::StrCat("fetch-", next));
    EXPECT_TRUE(receiver.AwaitOpen(open)) << next;
  }
  activity.Close();
  EXPECT_TRUE(receiver.AwaitOpen({}));
}

}  // namespace
}  // namespace phalanx::agent

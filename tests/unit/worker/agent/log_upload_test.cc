// Uploads of logs against a coordinator that only receives them.
#include "worker/agent/log_upload.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::agent {
namespace {

constexpr JobId kJob{7};

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

// Else followers that were left behind keep out everybody after them.
TEST(LogUploadTest, OneMoreThanMayBeUnderWay_CutsTheOldest) {
  Receiver receiver;
  LogActivity activity;
  activity.ProcessBegan(kJob);
  const std::shared_ptr<grpc::Channel> channel = receiver.Connect();
  LogUploader uploader(support::MakeFolder("uploads"), activity);
  const auto follow = [&](size_t number) {
    return uploader.Start(
        channel, 1, {.fetch_id = absl::StrCat("fetch-", number), .job = kJob, .follow = true});
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

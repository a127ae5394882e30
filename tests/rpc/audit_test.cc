// Lines of the audit that are kept beside the store.
#include "coordinator/rpc/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/mutex.h"
#include "nlohmann/json.hpp"
#include "tests/rpc/fixture.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const Caller kAlice = Identity{"alice", Role::kSubmitter};

TEST(AuditTest, LinesAreKeptByWhetherItWasDone_AsTheyAreTold) {
  std::vector<std::string> told, done, others;
  Audit audit([&](const std::string& line) { told.push_back(line); },
              {.calls_per_second = 0.001, .calls_at_once = 1}, [] {});
  audit.Keep(
      [&](const std::string& line, AuditKind kind) {
        (kind == AuditKind::kDone ? done : others).push_back(line);
        return absl::OkStatus();
      },
      [] { FAIL(); });
  audit.Tell(kAlice, "SubmitJob", "job=1", absl::OkStatus());
  for (int i = 0; i < 3; ++i)
    audit.Tell(kAlice, "DrainNode", "", absl::PermissionDeniedError("no"));
  audit.Tell(kAlice, "CancelJob", "job=1", absl::OkStatus());
  EXPECT_THAT(told, SizeIs(4));
  EXPECT_THAT(done, ElementsAre(told[0], told[3]));
  EXPECT_THAT(others, ElementsAre(told[1], told[2]));
  EXPECT_THAT(told[2], HasSubstr("left_out=2"));
}

TEST(AuditTest, LineThatCannotBeKept_IsToldAllTheSame_AndCounted) {
  std::vector<std::string> told;
  int not_kept = 0;
  Audit audit([&](const std::string& line) { told.push_back(line); }, {}, [] {});
  audit.Keep([](const std::string&, AuditKind) { return absl::UnavailableError("disk full"); },
             [&] { ++not_kept; });
  audit.Tell(kAlice, "SubmitJob", "job=1", absl::OkStatus());
  EXPECT_THAT(told, SizeIs(1));
  EXPECT_EQ(not_kept, 1);
}

// The one who asked gets the answer: what was asked is done.
TEST_F(RpcTest, AuditThatCannotBeKept_FailsNoChange_AndIsInTheMetrics) {
  ServerOptions options;
  options.keep_audit = [](const std::string&, AuditKind) {
    return absl::UnavailableError("disk full");
  };
  server_.reset();
  Start(std::move(options));
  EXPECT_THAT(server_->MetricsText(), HasSubstr("\nphalanx_audit_lines_not_kept_total 0\n"));
  MustSubmit(JobText("a"));
  EXPECT_THAT(server_->MetricsText(), HasSubstr("\nphalanx_audit_lines_not_kept_total 1\n"));
}

// Coordinators on one store, and streams of submits of jobs that no node can take.
class KilledCoordinatorTest : public ::testing::Test {
 protected:
  static constexpr int kStreams = 4;

  std::unique_ptr<support::Process> Serve() {
    const std::string ready = folder_ + "/ready.json";
    std::filesystem::remove(ready);
    talks_.push_back(absl::StrCat(folder_, "/talk-", talks_.size()));
    auto process = std::make_unique<support::Process>(
        std::vector<std::string>{support::Program("phalanx-coordinator"), "--store", store_,
                                 "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file",
                                 ready},
        mark_, talks_.back(), talks_.back());
    support::AwaitFile(ready, *process);
    address_ = nlohmann::json::parse(support::ReadFile(ready))["grpc"];
    return process;
  }
  // Until a call fails. No call is made again.
  void SubmitUntilItFails(int stream) {
    const auto jobs =
        v1::JobService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
    for (int count = 0;; ++count) {
      v1::SubmitJobRequest request;
      request.mutable_document()->set_text(
          JobText(absl::StrCat("n", talks_.size(), "-", stream, "-", count)));
      request.mutable_document()->set_directory("/tmp");
      v1::SubmitJobResponse response;
      grpc::ClientContext context;
      SetDeadline(context);
      if (!jobs->SubmitJob(&context, request, &response).ok()) return;
      MutexLock lock(&mu_);
      acknowledged_.push_back(response.job().id());
      changed_.SignalAll();
    }
  }
  void AwaitAcknowledged(size_t count) {
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoSeconds(support::kPatience);
    MutexLock lock(&mu_);
    while (acknowledged_.size() < count)
      support::Require(!changed_.WaitUntil(&mu_, deadline), "too few submits");
  }

  const std::string folder_ = support::MakeFolder("audit"), store_ = folder_ + "/store";
  const std::string mark_ = support::NewMark();
  std::vector<std::string> talks_;
  std::string address_;
  Mutex mu_;
  CondVar changed_;
  std::vector<int64_t> acknowledged_ ABSL_GUARDED_BY(mu_);
};

TEST_F(KilledCoordinatorTest, EachAcknowledgedChange_IsInTheFileOnce) {
  constexpr int kKills = 3;
  for (int kill = 1; kill <= kKills; ++kill) {
    // Destroyed after the coordinator, whose end is theirs, also where a wait throws.
    std::vector<std::jthread> streams;
    const std::unique_ptr<support::Process> coordinator = Serve();
    for (int stream = 0; stream < kStreams; ++stream)
      streams.emplace_back([this, stream] { SubmitUntilItFails(stream); });
    AwaitAcknowledged(static_cast<size_t>(kill) * 50);
    coordinator->Signal(SIGKILL);
    coordinator->Wait();
  }

  std::map<std::string, int> kept;  // by job
  for (const std::string& line : std::vector<std::string>(
           absl::StrSplit(support::ReadFile(store_ + "/audit.log"), '\n', absl::SkipEmpty()))) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_EQ(words.size(), 7u) << line;
    EXPECT_TRUE(absl::EndsWith(words[0], "Z")) << line;
    EXPECT_EQ(words[4] + words[6], "method=SubmitJoboutcome=OK") << line;
    EXPECT_EQ(++kept[words[5]], 1) << line;
  }
  std::string told;
  for (const std::string& talk : talks_) told += support::ReadFile(talk);
  MutexLock lock(&mu_);
  for (const int64_t job : acknowledged_) {
    EXPECT_EQ(kept[absl::StrCat("job=", job)], 1) << job;
    EXPECT_THAT(told, HasSubstr(absl::StrCat("audit who=- role=- method=SubmitJob job=", job,
                                             " outcome=OK\n")));
  }
  EXPECT_GE(acknowledged_.size(), 50u * kKills);
}

TEST_F(KilledCoordinatorTest, RefusalsAreInAFileOfTheirOwn) {
  const std::unique_ptr<support::Process> coordinator = Serve();
  const auto jobs =
      v1::JobService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  v1::CancelJobRequest request;
  request.set_job("job-7");
  v1::CancelJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(jobs->CancelJob(&context, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  // They are written beside the answer, and all of them before the end.
  coordinator->Signal(SIGTERM);
  coordinator->Wait();
  EXPECT_THAT(
      support::ReadFile(store_ + "/audit-refused.log"),
      AllOf(HasSubstr("Z audit who=- role=- method=CancelJob "), HasSubstr(" outcome=NOT_FOUND ")));
  EXPECT_FALSE(std::filesystem::exists(store_ + "/audit.log"));
}

}  // namespace
}  // namespace phalanx::coordinator

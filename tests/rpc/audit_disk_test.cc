// A disk that hangs while lines of the audit are written to it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/audit.h"
#include "core/posix/unique_fd.h"
#include "nlohmann/json.hpp"
#include "tests/rpc/fixture.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AuditKindTest, LinesOfWorkers_AreOfAKindOfTheirOwn) {
  std::vector<AuditKind> kinds;
  Audit audit([](const std::string&) {}, {}, [] {});
  audit.Keep(
      [&](const std::string&, AuditKind kind) {
        kinds.push_back(kind);
        return absl::OkStatus();
      },
      [] { FAIL(); });
  const Caller node = Identity{"node-1", Role::kWorker};
  audit.Tell(node, "OpenSession", "", absl::OkStatus());
  audit.Tell(node, "OpenSession", "", absl::PermissionDeniedError("no"));
  audit.Tell(Identity{"alice", Role::kOperator}, "DrainNode", "", absl::OkStatus());
  audit.Tell(std::nullopt, "SubmitJob", "", absl::OkStatus());
  EXPECT_THAT(kinds, ElementsAre(AuditKind::kByWorker, AuditKind::kNotDone, AuditKind::kDone,
                                 AuditKind::kDone));
}

// The file of refusals is a pipe that nobody reads, and is full: who writes to it waits for ever.
TEST(AuditDiskTest, RefusalsThatCannotBeWritten_HoldNoCallUp) {
  const std::string folder = support::MakeFolder("audit"), store = folder + "/store";
  const std::string ready = folder + "/ready.json", talk = folder + "/talk";
  std::filesystem::create_directory(store);
  const std::string refusals = store + "/audit-refused.log";
  ASSERT_EQ(mkfifo(refusals.c_str(), 0600), 0);
  const UniqueFd pipe(open(refusals.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  const std::string fill(4096, '*');
  while (write(pipe.get(), fill.data(), fill.size()) > 0) {
  }
  support::Process coordinator(
      {support::Program("phalanx-coordinator"), "--store", store, "--listen", "127.0.0.1:0",
       "--http", "127.0.0.1:0", "--ready-file", ready},
      support::NewMark(), talk, talk);
  support::AwaitFile(ready, coordinator);
  const std::string address = nlohmann::json::parse(support::ReadFile(ready))["grpc"];
  const auto jobs =
      v1::JobService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));

  for (int call = 0; call < 100; ++call) {  // more than there are threads
    v1::CancelJobRequest request;
    request.set_job("job-7");
    v1::CancelJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    ASSERT_EQ(jobs->CancelJob(&context, request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  v1::SubmitJobRequest request;
  request.mutable_document()->set_text(JobText("a"));
  request.mutable_document()->set_directory("/tmp");
  v1::SubmitJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->SubmitJob(&context, request, &response).ok());
  EXPECT_THAT(support::ReadFile(store + "/audit.log"),
              HasSubstr(absl::StrCat("method=SubmitJob job=", response.job().id(), " outcome=OK")));
  coordinator.Signal(SIGKILL);  // it would wait for its disk
  coordinator.Wait();
}

}  // namespace
}  // namespace phalanx::coordinator

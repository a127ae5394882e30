// A cluster with certificates: who submits, looks on and ends a job.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(AccessTest, JobOverMutualTls_IsSeenByViewersAndEndedByItsOwner) {
  const DataFolder data = MakeData();
  const std::string file = data.path + "/job.yaml";
  support::WriteFile(file, Document(data, {.name = "sams", .steps = kForEver}).text());
  const support::Authority authority;
  std::vector<std::string> flags = TlsFlags(authority.Worker("here"));
  flags.insert(flags.end(), {"--write-folder", data.path});
  Cluster cluster({.devices = 2,
                   .coordinator_flags = TlsFlags(authority.Coordinator()),
                   .worker_flags = flags,
                   .tls = authority.User("olga", "operator")});
  const std::vector<std::string> sam = TlsFlags(authority.User("sam", "submitter")),
                                 sue = TlsFlags(authority.User("sue", "submitter")),
                                 vera = TlsFlags(authority.User("vera", "viewer"));
  const auto run = [&cluster](const std::vector<std::string>& who,
                              std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), who.begin(), who.end());
    return cluster.Phalanx(std::move(arguments));
  };

  const support::Finished submitted = run(sam, {"submit", file});
  ASSERT_EQ(submitted.exit_code, 0) << submitted.talk;
  EXPECT_EQ(submitted.out, "job-1\n");
  cluster.AwaitStep(1, 1);
  EXPECT_EQ(run(vera, {"list", "--owner", "sam", "-o", "name"}).out, "job-1\n");
  EXPECT_THAT(run(vera, {"describe", "sams"}).out, AllOf(HasSubstr("Owner"), HasSubstr("sam")));
  EXPECT_EQ(run(vera, {"logs", "sams"}).exit_code, 0);

  const support::Finished viewed = run(vera, {"cancel", "sams"});
  EXPECT_EQ(viewed.exit_code, client::kNotAllowed);
  EXPECT_THAT(viewed.talk, HasSubstr("CancelJob is for submitter, operator"));
  const support::Finished others = run(sue, {"cancel", "sams"});
  EXPECT_EQ(others.exit_code, client::kNotAllowed);
  EXPECT_THAT(others.talk, HasSubstr("job-1 is sam's"));
  EXPECT_EQ(run({}, {"cancel", "sams", "--timeout", "1s"}).exit_code, client::kUnreachable)
      << "in plaintext";
  EXPECT_EQ(support::RunToEnd({support::Program("phalanx"), "list", "--server", cluster.http(),
                               "--timeout", "1s"})
                .exit_code,
            client::kUnreachable)
      << "in plaintext, and to the port of pages";
  for (const char* port : {"grpc", "http"}) {
    support::AwaitText(
        cluster.CoordinatorLogPath(),
        absl::StrCat("audit who=- role=- method=handshake port=", port, " peer=ipv4:127.0.0.1:"),
        cluster.coordinator());
  }
  EXPECT_EQ(cluster.Get(1).phase(), v1::JOB_PHASE_RUNNING);

  EXPECT_EQ(run(sam, {"cancel", "sams"}).exit_code, 0);
  EXPECT_EQ(run(vera, {"watch", "sams"}).exit_code, client::kJobCancelled);
  EXPECT_EQ(cluster.Get(1).reason(), "cancelled by sam");
  EXPECT_THAT(
      cluster.CoordinatorLog(),
      AllOf(HasSubstr("audit who=sam role=submitter method=SubmitJob job=1 outcome=OK"),
            HasSubstr("audit who=vera role=viewer method=CancelJob outcome=PERMISSION_DENIED"),
            HasSubstr("audit who=sam role=submitter method=CancelJob job=1 outcome=OK")));
}

TEST(AccessTest, FoldersOfOwners_AreForTheirJobsAlone) {
  const DataFolder data = MakeData();
  const support::Authority authority;
  const std::string runs = data.path + "/runs/{owner}";
  std::vector<std::string> flags = TlsFlags(authority.Worker("here"));
  flags.insert(flags.end(), {"--read-folder", data.path, "--write-folder", runs});
  Cluster cluster({.devices = 2,
                   .coordinator_flags = TlsFlags(authority.Coordinator()),
                   .worker_flags = flags,
                   .tls = authority.User("olga", "operator")});
  const auto submit = [&](const std::string& who, const std::string& output) {
    support::WriteFile(data.path + "/job.yaml",
                       JobText(data, {.name = absl::StrCat("of-", who), .output = output}));
    std::vector<std::string> arguments = {"submit", "--wait", data.path + "/job.yaml"};
    const std::vector<std::string> tls = TlsFlags(authority.User(who, "submitter"));
    arguments.insert(arguments.end(), tls.begin(), tls.end());
    return cluster.Phalanx(std::move(arguments));
  };
  const support::Finished alices = submit("alice", "runs/alice/first");
  ASSERT_EQ(alices.exit_code, 0) << alices.talk;
  const std::string metrics = data.path + "/runs/alice/first/metrics.jsonl";
  const std::string before = support::ReadFile(metrics);
  EXPECT_THAT(before, HasSubstr("\"loss\""));

  EXPECT_EQ(submit("bob", "runs/alice/first").exit_code, 100);
  std::vector<std::string> describe = TlsFlags(authority.User("olga", "operator"));
  describe.insert(describe.begin(), {"describe", "of-bob"});
  EXPECT_THAT(cluster.Phalanx(describe).out,
              HasSubstr(absl::StrCat("spec.output: runs/alice/first: leads to ", data.path,
                                     "/runs/alice/first; jobs of this node write only in ",
                                     data.path, "/runs/bob")));
  EXPECT_EQ(support::ReadFile(metrics), before);
  EXPECT_FALSE(std::filesystem::exists(data.path + "/runs/alice/first/metrics.1.jsonl"));
}

}  // namespace
}  // namespace phalanx::e2e

// The backup that docs/operations.md describes, of a store that is being written.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/submitter.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/tools.h"

namespace phalanx::e2e {
namespace {

constexpr char kSqlite[] = "/usr/bin/sqlite3";
constexpr size_t kJobs = 100;

void AwaitJobs(Cluster& cluster, size_t count) {
  const absl::Time deadline = absl::Now() + support::kPatience;
  while (cluster.List().size() < count) support::Require(absl::Now() < deadline, "too few jobs");
}

TEST(BackupTest, OfARunningCoordinator_HasEveryJobThatWasAcknowledgedBefore) {
  PHALANX_SKIP_WITHOUT_TOOL(access(kSqlite, X_OK) == 0
                                ? ""
                                : absl::StrCat(kSqlite, " is missing: scripts/setup brings it"));
  const DataFolder data = MakeData();
  const std::string folder = support::MakeFolder("e2e-backup");
  const std::string copy = folder + "/copy";
  std::filesystem::create_directory(copy);
  auto cluster =
      std::make_unique<Cluster>(ClusterOptions{.devices = 1, .store = folder + "/store"});
  Submitter first(cluster->grpc(), data, {.number = 1});
  AwaitJobs(*cluster, kJobs);
  const Acknowledged before = first.Finish();
  ASSERT_GE(before.submits.size(), kJobs - 1);

  // Others are submitted meanwhile.
  Submitter second(cluster->grpc(), data, {.number = 2});
  AwaitJobs(*cluster, before.submits.size() + 5);
  const support::Finished backup = support::RunToEnd(
      {kSqlite, folder + "/store/journal.db", absl::StrCat(".backup ", copy, "/journal.db")});
  AwaitJobs(*cluster, cluster->List().size() + 1);
  const Acknowledged after = second.Finish();
  ASSERT_EQ(backup.exit_code, 0) << backup.talk;
  EXPECT_EQ(backup.talk, "");
  EXPECT_EQ(LookFor(after, *cluster).missing, 0) << "the coordinator went on";
  cluster.reset();  // two of them would both take the nodes for theirs

  const support::Finished check = support::RunToEnd(
      {support::Program("phalanx-coordinator"), "--store", copy, "--check-store"});
  EXPECT_EQ(check.exit_code, 0) << check.out << check.talk;
  Cluster restored({.devices = 1, .store = copy});
  const Kept kept = LookFor(before, restored);
  EXPECT_EQ(kept.missing, 0);
  EXPECT_EQ(kept.doubled, 0);
  // It takes jobs, and gives them numbers that none has.
  const int64_t next = restored.Submit(Document(data, {.name = "next"})).id();
  for (const auto& [name, id] : before.submits) ASSERT_NE(id, next) << name;
}

}  // namespace
}  // namespace phalanx::e2e

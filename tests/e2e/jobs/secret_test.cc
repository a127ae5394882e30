// The value of a secret is in the environment of the ranks that asked for it, and nowhere else.
#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

using testing::Contains;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr char kSecret[] = "s3cret-of-this-test-5f2c9a";

// Of the files below the folder: those that hold `text`.
std::vector<std::string> FilesWith(const std::string& text, const std::string& folder) {
  for (int tries = 1;; ++tries) {
    try {
      std::vector<std::string> found;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        if (entry.is_regular_file() && absl::StrContains(support::ReadText(entry.path()), text))
          found.push_back(entry.path());
      }
      return found;
    } catch (const std::filesystem::filesystem_error&) {
      if (tries == 100) throw;  // a folder went away meanwhile: the daemon tidies up
    }
  }
}

// Command lines of all processes that have the text in it.
std::vector<std::string> CommandLinesWith(const std::string& text,
                                          const std::vector<pid_t>& processes) {
  std::vector<std::string> found;
  for (const pid_t pid : processes) {
    std::string line = support::ReadText(absl::StrCat("/proc/", pid, "/cmdline"));
    if (absl::StrContains(line, text)) found.push_back(std::move(line));
  }
  return found;
}

class SecretTest : public ::testing::Test {
 protected:
  // What somebody sees who asks for all that there is.
  std::string WhatIsShown() {
    std::string shown;
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"get", "tiny", "-o", "yaml"},
          {"get", "tiny", "-o", "json"},
          {"describe", "tiny"},
          {"why", "tiny"},
          {"events", "tiny"},
          {"logs", "tiny"},
          {"list", "-o", "wide"},
          {"nodes"}}) {
      const support::Finished finished = cluster_.Phalanx(command);
      absl::StrAppend(&shown, finished.out, finished.talk);
    }
    for (const v1::JobEvent& event : cluster_.Events(1))
      absl::StrAppend(&shown, event.DebugString());
    return shown;
  }
  void ExpectNowhere() {
    EXPECT_THAT(FilesWith(kSecret, folder_), IsEmpty());
    EXPECT_THAT(FilesWith(kSecret, data_.path), IsEmpty());
    EXPECT_THAT(CommandLinesWith(kSecret, cluster_.Processes()), IsEmpty());
    const std::string shown = WhatIsShown();
    EXPECT_THAT(shown, Not(HasSubstr(kSecret)));
    EXPECT_THAT(shown, HasSubstr("TOKEN")) << "its name may be seen";
  }

  const DataFolder data_ = MakeData();
  const std::string secrets_ = support::MakeFolder("e2e-secrets");
  Cluster cluster_{{.devices = 2, .worker_flags = {"--secrets", secrets_}}};
  // With the store, the daemon's state, and the logs of both and of the ranks.
  const std::string folder_ =
      std::filesystem::path(cluster_.CoordinatorLogPath()).parent_path().string();
};

TEST_F(SecretTest, Value_IsInNoFile_NoCommandLineAndNoAnswer) {
  support::WriteFile(secrets_ + "/token", absl::StrCat(kSecret, "\n"));
  support::WriteFile(data_.path + "/job.yaml", absl::StrCat(JobText(data_, {.steps = kForEver}),
                                                            "  env: {PLAIN: plain-of-this-test}\n"
                                                            "  secrets: {TOKEN: token}\n"));
  const support::Finished submitted = cluster_.Phalanx({"submit", data_.path + "/job.yaml"});
  ASSERT_EQ(submitted.exit_code, 0) << submitted.talk;
  cluster_.AwaitStep(1, 2);
  // The ranks have it, and what is looked through is what there is.
  const std::map<int32_t, support::ProcessWatch> ranks = cluster_.Ranks(1);
  ASSERT_THAT(ranks, SizeIs(2));
  for (const auto& [rank, watch] : ranks) {
    EXPECT_THAT(support::ReadText(absl::StrCat("/proc/", watch.pid(), "/environ")),
                HasSubstr(absl::StrCat("TOKEN=", kSecret)));
    EXPECT_THAT(support::ReadText(absl::StrCat("/proc/", watch.pid(), "/limits")),
                ContainsRegex("Max core file size +[01] +[01] "))
        << "a core would have it";
  }
  const std::vector<pid_t> processes = cluster_.Processes();
  EXPECT_THAT(processes, SizeIs(Ge(4u))) << "coordinator, daemon, two ranks";
  EXPECT_THAT(CommandLinesWith("phalanx", processes), SizeIs(processes.size()));
  // The newest records may be in the log of the database alone.
  EXPECT_THAT(FilesWith("plain-of-this-test", folder_ + "/store"),
              Contains(HasSubstr("/journal.db")));
  EXPECT_THAT(FilesWith("", folder_), Contains(EndsWith("/rank-0.log")));

  ExpectNowhere();
  cluster_.Cancel(1);
  cluster_.AwaitEnd(1);
  ExpectNowhere();
}

// The rank's own failure is told with all that is known of it.
TEST_F(SecretTest, OfAJobThatFails_IsNotToldEither) {
  support::WriteFile(secrets_ + "/token", absl::StrCat(kSecret, "\n"));
  v1::JobDocument document = Document(data_, {.steps = kForEver, .recovery = kNoRecovery});
  document.set_text(absl::StrCat(document.text(), "  secrets: {TOKEN: token}\n"));
  cluster_.Submit(document);
  cluster_.AwaitStep(1, 2);
  kill(cluster_.Ranks(1).begin()->second.pid(), SIGSEGV);
  EXPECT_EQ(cluster_.AwaitEnd(1).phase(), v1::JOB_PHASE_FAILED);
  ExpectNowhere();
}

}  // namespace
}  // namespace phalanx::e2e

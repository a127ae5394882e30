// Processes of `phalanx run`: none of them outlives the one that made them.
#include "client/local_cluster.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/synchronization/notification.h"
#include "client/completion.h"
#include "client/interrupt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;

// A folder with programs of the right names that do what the scripts say, and tmp/ for the cluster.
class LocalClusterTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_ + "/tmp"); }

  // Finds --ready-file among the arguments, then runs `body` with $ready.
  void Program(const std::string& name, const std::string& body) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path)
        << "#!/bin/sh\n"
        << "while [ $# -gt 0 ]; do [ \"$1\" = --ready-file ] && ready=$2; shift; done\n"
        << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  static std::string Ready(const std::string& json) {
    return "echo '" + json + "' > $ready.new; mv $ready.new $ready\n";
  }
  // Nothing that this process started is left, not even to be reaped.
  static bool NoChildren() { return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }
  LocalClusterOptions Options() {
    return {.programs = folder_, .temporary = folder_ + "/tmp", .start_timeout = absl::Seconds(30)};
  }

  const std::string folder_ = support::MakeFolder("cluster");
};

TEST_F(LocalClusterTest, Stop_EndsBothAndRemovesTheFolder) {
  Program("phalanx-coordinator", Ready("{\"grpc\": \"127.0.0.1:4321\"}") + "exec sleep 1000");
  Program("phalanx-worker", Ready("{\"pid\": 1}") + "exec sleep 1000");
  LocalCluster cluster(Options());
  Stopper stopper;
  ASSERT_TRUE(cluster.Start(stopper).ok());
  EXPECT_EQ(cluster.server(), "127.0.0.1:4321");
  EXPECT_FALSE(cluster.AnyEnded());
  cluster.Stop();
  EXPECT_TRUE(NoChildren());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/tmp"));
}

TEST_F(LocalClusterTest, ProgramThatIgnoresSigterm_IsKilled) {
  Program("phalanx-coordinator", Ready("{\"grpc\": \"127.0.0.1:1\"}") + "exec sleep 1000");
  Program("phalanx-worker", "trap '' TERM\n" + Ready("{}") + "while :; do sleep 1000; done");
  LocalClusterOptions options = Options();
  options.worker_grace = absl::Milliseconds(50);
  LocalCluster cluster(options);
  Stopper stopper;
  ASSERT_TRUE(cluster.Start(stopper).ok());
  cluster.Stop();
  EXPECT_TRUE(NoChildren());
}

TEST_F(LocalClusterTest, ProgramThatEndsAtOnce_IsReportedWithItsLog) {
  Program("phalanx-coordinator", "echo cannot open the store >&2; exit 3");
  LocalCluster cluster(Options());
  Stopper stopper;
  const absl::Status started = cluster.Start(stopper);
  EXPECT_EQ(started.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(started.message()),
              HasSubstr("phalanx-coordinator: cannot open the store"));
}

TEST_F(LocalClusterTest, MissingProgram_IsNamed) {
  LocalCluster cluster(Options());
  Stopper stopper;
  EXPECT_EQ(cluster.Start(stopper).code(), absl::StatusCode::kNotFound);
}

TEST_F(LocalClusterTest, StoppedWhileStarting_IsCancelled) {
  Program("phalanx-coordinator", "exec sleep 1000");
  LocalCluster cluster(Options());
  Stopper stopper;
  stopper.Stop();
  EXPECT_EQ(cluster.Start(stopper).code(), absl::StatusCode::kCancelled);
  cluster.Stop();
  EXPECT_TRUE(NoChildren());
}

TEST(ChildTest, ParentKilled_TakesTheChildWithIt) {
  // Orphans come to this process, so that their end can be waited for.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    absl::StatusOr<Child> child = Child::Start({"/bin/sleep", "1000"}, "/dev/null");
    const pid_t pid = child.ok() ? child->pid() : 0;
    [[maybe_unused]] const ssize_t written = write(fds[1], &pid, sizeof(pid));
    while (true) pause();
  }
  pid_t child = 0;
  ASSERT_EQ(read(fds[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  ASSERT_GT(child, 0);
  kill(parent, SIGKILL);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(ChildTest, Child_HasAGroupOfItsOwnAndNoBlockedSignals) {
  absl::Notification told;
  const Interrupt interrupt({SIGINT}, [&](int) { told.Notify(); });
  absl::StatusOr<Child> child = Child::Start({"/bin/sleep", "1000"}, "/dev/null");
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(getpgid(child->pid()), child->pid());
  kill(child->pid(), SIGINT);
  int status = 0;
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child->pid()), &info, WEXITED | WNOWAIT), 0);
  status = child->End(absl::ZeroDuration());
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(CompletionTest, EveryShell_KnowsCommandsAndOptions) {
  const std::vector<CommandWords> words = {{"submit", "Queue it's job", {"--wait", "-o"}},
                                           {"list", "List", {}}};
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = CompletionScript(shell, words);
    EXPECT_THAT(script, HasSubstr("submit")) << shell;
    EXPECT_THAT(script, HasSubstr("wait")) << shell;
  }
  EXPECT_EQ(CompletionScript("csh", words), "");
  const std::string path = ::testing::TempDir() + "/completion.bash";
  std::ofstream(path) << CompletionScript("bash", words);
  EXPECT_EQ(std::system(("bash -n " + path).c_str()), 0);
}

}  // namespace
}  // namespace phalanx::client

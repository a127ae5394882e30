// What a process is started with.
#include "worker/agent/spawn.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::agent {
namespace {

using ::testing::MatchesRegex;

std::string LineOfCores(const std::string& limits) {
  std::istringstream lines(limits);
  for (std::string line; std::getline(lines, line);) {
    if (absl::StartsWith(line, "Max core file size")) return line;
  }
  return "";
}

// What a process of ours finds there.
std::string ReadBySpawned(const std::string& file, bool leaves_no_core) {
  const absl::StatusOr<Spawned> spawned = SpawnRank("/bin/cat", {}, {file}, leaves_no_core);
  EXPECT_TRUE(spawned.ok()) << spawned.status();
  if (!spawned.ok()) return "";
  std::string text;
  char buffer[4096];
  ssize_t n = 0;
  do {
    pollfd readable{spawned->output.get(), POLLIN, 0};
    poll(&readable, 1, -1);
    n = read(spawned->output.get(), buffer, sizeof(buffer));
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  } while (n > 0);
  waitpid(spawned->pid, nullptr, 0);
  return text;
}

std::string LimitOfCores(bool leaves_no_core) {
  return LineOfCores(ReadBySpawned("/proc/self/limits", leaves_no_core));
}

TEST(SpawnTest, ProcessWithSecrets_LeavesNoCore) {
  EXPECT_THAT(LimitOfCores(true), MatchesRegex("Max core file size +[01] +[01] +bytes *"));
}

// As the kernel hands a core to a program then, too.
TEST(SpawnTest, ProcessWithSecrets_WhereNobodyLeavesACore_IsKeptOutOfWhatIsHandedOver) {
  const auto keep_out = [] {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    const bool refused = absl::StrContains(LimitOfCores(true), "   1 ");  // by who may raise it
    const std::string filter = ReadBySpawned("/proc/self/coredump_filter", true);
    _exit(refused || filter == "00000000\n" ? 0 : 1);
  };
  EXPECT_EXIT(keep_out(), ::testing::ExitedWithCode(0), "");
}

TEST(SpawnTest, OtherProcess_MayLeaveOne_WhereItsDaemonMay) {
  EXPECT_EQ(LimitOfCores(false), LineOfCores(support::ReadFile("/proc/self/limits")));
}

}  // namespace
}  // namespace phalanx::agent

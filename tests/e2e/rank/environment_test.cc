// A rank process as its daemon starts it sets its environment itself.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "worker/agent/spawn.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

// What a rank says whose daemon goes as soon as it has started.
std::string TalkOfARank() {
  absl::StatusOr<agent::Spawned> rank = agent::SpawnRank(tests::BinDir() + "/phalanx-rank");
  support::Require(rank.ok(), rank.status().ToString());
  rank->channel.reset();
  std::string talk;
  while (true) {
    pollfd there{rank->output.get(), POLLIN, 0};
    support::Require(poll(&there, 1, 60'000) == 1, "the rank does not end; it said: " + talk);
    char text[4096];
    const ssize_t n = read(rank->output.get(), text, sizeof text);
    if (n < 0 && errno == EAGAIN) continue;
    if (n <= 0) break;
    talk.append(text, static_cast<size_t>(n));
  }
  int status = 0;
  waitpid(rank->pid, &status, 0);
  return talk;
}

TEST(RankEnvironmentTest, StartedWithoutCudasVariables_RunsWithThem) {
  unsetenv("CUDA_MODULE_LOADING");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  EXPECT_THAT(TalkOfARank(), HasSubstr("CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32"));
}

TEST(RankEnvironmentTest, StartedWithOtherValues_KeepsThem) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
  EXPECT_THAT(TalkOfARank(), HasSubstr("CUDA_MODULE_LOADING=LAZY CUDA_DEVICE_MAX_CONNECTIONS=8"));
}

}  // namespace
}  // namespace phalanx::e2e

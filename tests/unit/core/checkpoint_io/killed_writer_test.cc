// Whenever a process dies that writes checkpoints, the newest that is published is sound.
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "core/checkpoint_io/checkpoints.h"
#include "gmock/gmock.h"
#include "tests/unit/core/checkpoint_io/drafts.h"
#include "tests/unit/core/checkpoint_io/written.h"

namespace phalanx::checkpoint {
namespace {

constexpr int32_t kKills = 200;

// Writes checkpoints until the kernel kills the process, in the midst of whatever it does.
[[noreturn]] void WriteForEver(const Drafts& drafts, int64_t epoch, int64_t microseconds) {
  sigevent kill{};
  kill.sigev_notify = SIGEV_SIGNAL;
  kill.sigev_signo = SIGKILL;
  timer_t timer{};
  const itimerspec after = {.it_interval = {}, .it_value = {.tv_nsec = microseconds * 1000}};
  if (timer_create(CLOCK_MONOTONIC, &kill, &timer) != 0) _exit(2);
  if (timer_settime(timer, 0, &after, nullptr) != 0) _exit(2);
  for (int64_t step = 1; drafts.WriteAndPublish({.step = step, .epoch = epoch}).ok(); ++step) {
  }
  _exit(1);
}

TEST(KilledWriterTest, NewestPublished_IsSoundAfterEachOfManyKills) {
  const job::JobSpec spec = TwoModules();
  const std::string folder = support::MakeFolder("checkpoints");
  const Drafts drafts(PlanOf(spec), folder);
  CheckpointName newest;
  for (int64_t epoch = 1; epoch <= kKills; ++epoch) {
    const auto after = static_cast<int64_t>(Hash64(7, 7, static_cast<uint64_t>(epoch)) % 60'000);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) WriteForEver(drafts, epoch, after + 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed: " << WEXITSTATUS(status);
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
    const auto choice = ChooseCheckpoint(folder, spec, {});
    ASSERT_TRUE(choice.ok()) << choice.status();
    ASSERT_THAT(choice->passed_over, testing::IsEmpty()) << "epoch " << epoch;
    if (!choice->checkpoint.has_value()) continue;
    const Manifest& manifest = choice->checkpoint->manifest;
    const CheckpointName now{.step = manifest.step, .epoch = manifest.epoch};
    EXPECT_GE(now, newest) << "a published checkpoint was lost";
    newest = now;
  }
  EXPECT_GT(newest.step, 0) << "nothing was ever published";
  const auto published = drafts.WriteAndPublish({.step = newest.step + 1, .epoch = kKills + 1});
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_THAT(published->left, testing::IsEmpty());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         ToString(newest), std::filesystem::path(published->path).filename()))
      << "what killed processes leave goes with the next publication";
}

}  // namespace
}  // namespace phalanx::checkpoint

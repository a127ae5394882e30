#include "core/posix/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "gtest/gtest.h"

namespace phalanx {
namespace {

UniqueFd Open() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }
bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, EndOfItsLife_Closes) {
  int fd = -1;
  {
    const UniqueFd held = Open();
    ASSERT_TRUE(held.is_open());
    fd = held.get();
  }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(UniqueFdTest, Assignment_ClosesWhatWasHeldAtOnce) {
  UniqueFd first = Open(), second = Open();
  const int old = first.get(), kept = second.get();
  first = std::move(second);
  EXPECT_FALSE(IsOpen(old));
  EXPECT_EQ(first.get(), kept);
  EXPECT_TRUE(IsOpen(kept));
  EXPECT_FALSE(second.is_open());  // NOLINT(bugprone-use-after-move): what a move leaves
}

TEST(UniqueFdTest, AssignmentToItself_KeepsIt) {
  UniqueFd held = Open();
  UniqueFd& same = held;
  held = std::move(same);
  EXPECT_TRUE(held.is_open());
  EXPECT_TRUE(IsOpen(held.get()));
}

TEST(UniqueFdTest, Release_LeavesItOpen) {
  UniqueFd held = Open();
  const UniqueFd taken(held.Release());
  EXPECT_FALSE(held.is_open());
  EXPECT_TRUE(IsOpen(taken.get()));
}

// In a process of its own, which has no standard streams. Tells by its exit status.
[[noreturn]] void HoldThem() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
  HoldStandardStreams();
  const bool apart = Open().get() > STDERR_FILENO;
  const bool told = write(STDOUT_FILENO, "x", 1) < 0, taken = write(STDERR_FILENO, "x", 1) == 1;
  _exit(apart && told && taken ? 0 : 1);
}

TEST(HoldStandardStreamsTest, WhereThereAreNone_NoFileTakesTheirNumbers) {
  EXPECT_EXIT(HoldThem(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace phalanx

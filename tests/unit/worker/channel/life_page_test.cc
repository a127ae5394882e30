// Deaths of real children, known before they can be reaped.
#include "worker/channel/life_page.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/channel/patience.h"

namespace phalanx::channel {
namespace {

// A child that does `first`, holds its page, says so, and does `then`.
class Child {
 public:
  explicit Child(
      const std::function<void(LifePage&)>& then, const std::function<void()>& first = [] {})
      : made_(*LifePage::Make()) {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    UniqueFd read_end(fds[0]), write_end(fds[1]);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      first();
      LifePage page = *LifePage::Open(made_.for_rank.get());
      page.Hold();
      [[maybe_unused]] const ssize_t written = write(write_end.get(), "h", 1);
      then(page);
      while (true) pause();
    }
    pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    write_end.reset();
    char byte = 0;
    EXPECT_EQ(read(read_end.get(), &byte, 1), 1);
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  LifePage& page() { return made_.page; }
  void Kill() const { kill(pid_, SIGKILL); }
  bool CanBeReaped(absl::Duration patience = absl::ZeroDuration()) const {
    pollfd entry{pidfd_.get(), POLLIN, 0};
    return poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
  }

 private:
  LifePage::Made made_;
  pid_t pid_ = 0;
  UniqueFd pidfd_;
};

void Nothing(LifePage&) {}

TEST(LifePageTest, ChildThatLives_HasNotEnded) {
  Child child(Nothing);
  EXPECT_TRUE(child.page().was_held());
  EXPECT_EQ(child.page().AwaitEnd(absl::Milliseconds(20)), LifePage::End::kNone);
}

TEST(LifePageTest, PageThatNobodyHolds_WasNotHeld) {
  EXPECT_FALSE(LifePage::Make()->page.was_held());
}

TEST(LifePageTest, ChildThatIsKilled_HasDied) {
  std::vector<absl::Duration> delays;
  for (int i = 0; i < 21; ++i) {
    Child child(Nothing);
    absl::Time known;
    std::jthread watcher([&] {
      EXPECT_EQ(child.page().AwaitEnd(kPatience), LifePage::End::kDied);
      known = absl::Now();
    });
    const absl::Time killed = absl::Now();
    child.Kill();
    watcher.join();
    delays.push_back(known - killed);
  }
  std::sort(delays.begin(), delays.end());
  RecordProperty("median_us", static_cast<int>(absl::ToInt64Microseconds(delays[10])));
  RecordProperty("max_us", static_cast<int>(absl::ToInt64Microseconds(delays[20])));
  // A millisecond on an idle machine; others may run on this one.
  EXPECT_LT(delays[10], absl::Milliseconds(100));
}

TEST(LifePageTest, DeathBeforeTheWait_IsKnownAtOnceAndOnlyOnce) {
  Child child(Nothing);
  child.Kill();
  ASSERT_TRUE(child.CanBeReaped(kPatience));
  EXPECT_EQ(child.page().AwaitEnd(kPatience), LifePage::End::kDied);
  EXPECT_EQ(child.page().AwaitEnd(kPatience), LifePage::End::kInOrder);
}

// As a process whose driver still gives its memory back: its parent can do nothing but wait.
TEST(LifePageTest, ChildThatCannotBeReapedYet_HasDied) {
  Child child([](LifePage&) {
    std::thread([] {
      while (true) pause();
    }).detach();
    syscall(SYS_exit, 0);  // of the main thread alone
  });
  EXPECT_EQ(child.page().AwaitEnd(kPatience), LifePage::End::kDied);
  EXPECT_FALSE(child.CanBeReaped());
}

// The kernel gives the memory of a process back before it can be reaped: of 512 MiB that takes
// milliseconds.
TEST(LifePageTest, DeathOfAChildWithMuchMemory_IsKnownFirst) {
  constexpr size_t kBytes = size_t{512} << 20;
  Child child(Nothing, [] {
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::_Exit(1);
    madvise(memory, kBytes, MADV_NOHUGEPAGE);
    std::memset(memory, 1, kBytes);
  });
  absl::Time known;
  std::jthread watcher([&] {
    EXPECT_EQ(child.page().AwaitEnd(kPatience), LifePage::End::kDied);
    known = absl::Now();
  });
  const absl::Time killed = absl::Now();
  child.Kill();
  ASSERT_TRUE(child.CanBeReaped(kPatience));
  const absl::Time reapable = absl::Now();
  watcher.join();
  RecordProperty("known_us", static_cast<int>(absl::ToInt64Microseconds(known - killed)));
  RecordProperty("reapable_us", static_cast<int>(absl::ToInt64Microseconds(reapable - killed)));
  EXPECT_LT(known, reapable);
}

TEST(LifePageTest, ChildThatLetsGo_HasEndedInOrder) {
  Child child([](LifePage& page) {
    page.LetGo();
    std::_Exit(0);
  });
  EXPECT_EQ(child.page().AwaitEnd(kPatience), LifePage::End::kInOrder);
}

TEST(LifePageTest, ChildThatExitsWithoutLettingGo_HasDied) {
  Child child([](LifePage&) { std::_Exit(0); });
  EXPECT_EQ(child.page().AwaitEnd(kPatience), LifePage::End::kDied);
}

TEST(LifePageTest, Descriptor_OfSomethingElse_IsNoPage) {
  EXPECT_EQ(LifePage::Open(-1).status().code(), absl::StatusCode::kFailedPrecondition);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(LifePage::Open(null.get()).status().code(), absl::StatusCode::kFailedPrecondition);
  const UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(LifePage::Open(memory.get()).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace phalanx::channel

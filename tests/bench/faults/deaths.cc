#include "tests/bench/faults/deaths.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/posix/unique_fd.h"
#include "nlohmann/json.hpp"
#include "tests/bench/faults/found.h"
#include "tests/support/process.h"
#include "worker/channel/life_page.h"

namespace phalanx::e2e {
namespace {

constexpr double kKnownLimitMilliseconds = 1;  // p50
// For a thread that has begun to wait in the kernel, which nothing tells.
constexpr absl::Duration kWatcherWaits = absl::Milliseconds(2);
constexpr size_t kMuchMemory = size_t{256} << 20;

// Of the child: holds its page and so much memory, says so, and lives until it is killed.
[[noreturn]] void Live(int page_fd, int ready_fd, size_t bytes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (bytes > 0) {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(1);
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    std::memset(memory, 1, bytes);
  }
  absl::StatusOr<channel::LifePage> page = channel::LifePage::Open(page_fd);
  if (!page.ok()) _exit(1);
  page->Hold();
  [[maybe_unused]] const ssize_t written = write(ready_fd, "h", 1);
  while (true) pause();
}

struct Death {
  absl::Duration known, reapable;
  bool right = false;  // it is known as one
};

Death KillOne(size_t bytes) {
  absl::StatusOr<channel::LifePage::Made> made = channel::LifePage::Make();
  support::Require(made.ok(), made.status().ToString());
  int fds[2];
  support::Require(pipe2(fds, O_CLOEXEC) == 0, "a pipe can be made");
  const UniqueFd read_end(fds[0]);
  UniqueFd write_end(fds[1]);
  const pid_t pid = fork();
  support::Require(pid >= 0, "a process can be made");
  if (pid == 0) Live(made->for_rank.get(), write_end.get(), bytes);
  write_end.reset();
  char byte = 0;
  support::Require(read(read_end.get(), &byte, 1) == 1, "the process holds its page");
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  Death death;
  absl::Time known;
  std::jthread watcher([&] {
    death.right = made->page.AwaitEnd(support::kPatience) == channel::LifePage::End::kDied;
    known = absl::Now();
  });
  absl::SleepFor(kWatcherWaits);
  const absl::Time killed = absl::Now();
  kill(pid, SIGKILL);
  pollfd entry{process.get(), POLLIN, 0};
  poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(support::kPatience)));
  death.reapable = absl::Now() - killed;
  watcher.join();
  death.known = known - killed;
  waitpid(pid, nullptr, 0);
  return death;
}

struct Deaths {
  Series known, reapable;  // milliseconds
  int64_t wrong = 0;
};

Deaths KillAll(int64_t tries, size_t bytes) {
  Deaths deaths;
  for (int64_t i = 0; i < tries; ++i) {
    const Death death = KillOne(bytes);
    deaths.known.Add(absl::ToDoubleMilliseconds(death.known));
    deaths.reapable.Add(absl::ToDoubleMilliseconds(death.reapable));
    deaths.wrong += death.right ? 0 : 1;
  }
  return deaths;
}

nlohmann::ordered_json ToJson(Deaths& deaths) {
  return {{"known_ms", deaths.known.ToJson()},
          {"reapable_ms", deaths.reapable.ToJson()},
          {"wrong", deaths.wrong}};
}

}  // namespace

bool KnowDeaths(int64_t tries) {
  Deaths little = KillAll(tries, 0), much = KillAll(tries, kMuchMemory);
  const nlohmann::ordered_json line = {{"benchmark", "death_to_known"},
                                       {"tries", tries},
                                       {"little_memory", ToJson(little)},
                                       {"much_memory", ToJson(much)}};
  std::printf("%s\n", line.dump().c_str());
  const double worse = std::max(little.known.Percentile(0.5), much.known.Percentile(0.5));
  return worse <= kKnownLimitMilliseconds && little.wrong + much.wrong == 0;
}

}  // namespace phalanx::e2e

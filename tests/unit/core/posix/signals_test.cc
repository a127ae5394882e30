#include "core/posix/signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <semaphore>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace phalanx {
namespace {

class SignalsDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SignalsDeathTest, ProcessThatFails_SaysWhereItStood_AndEndsByTheSignal) {
  EXPECT_EXIT(
      {
        TellOfFaults();
        raise(SIGSEGV);
      },
      testing::KilledBySignal(SIGSEGV),
      "Segmentation fault, by:(.|\n)*test_unit_core_posix\\(\\+0x[0-9a-f]+\\)\n");
  EXPECT_EXIT(
      {
        TellOfFaults();
        abort();
      },
      testing::KilledBySignal(SIGABRT), "Aborted, by:(.|\n)*libc.so");
}

TEST_F(SignalsDeathTest, ThreadThatFails_EndsTheProcess) {
  EXPECT_EXIT(
      {
        TellOfFaults();
        std::thread([] { raise(SIGBUS); }).join();
      },
      testing::KilledBySignal(SIGBUS), "Bus error, by:");
}

TEST_F(SignalsDeathTest, ProcessWithoutStandardError_EndsByTheSignal) {
  EXPECT_EXIT(
      {
        TellOfFaults();
        close(STDERR_FILENO);
        raise(SIGFPE);
      },
      testing::KilledBySignal(SIGFPE), "");
}

// It has a meaning of ours only while a fault is told of.
TEST_F(SignalsDeathTest, ProcessThatSomebodySendsAnAlarm_EndsByIt) {
  EXPECT_EXIT(
      {
        TellOfFaults();
        raise(SIGALRM);
      },
      testing::KilledBySignal(SIGALRM), "^$");
}

int ThreadsIn(const std::string& said) {
  int threads = 0;
  for (size_t at = 0; (at = said.find("*** thread", at)) != std::string::npos; ++at) ++threads;
  return threads;
}

// What is said comes through a pipe, so that the process knows when it has come.
[[noreturn]] void AsksWithAnotherThread(bool answers) {
  int ends[2];
  if (pipe(ends) != 0) _exit(1);
  const int out = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  TellWhenAsked();
  std::binary_semaphore end(0), blocked(0);
  std::thread waits([&] {
    if (!answers) {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
    }
    blocked.release();
    end.acquire();
  });
  blocked.acquire();
  raise(SIGQUIT);
  std::string said;
  std::array<char, 4096> part;
  while (ThreadsIn(said) < 2) {
    const ssize_t count = read(ends[0], part.data(), part.size());
    if (count <= 0) _exit(1);
    said.append(part.data(), static_cast<size_t>(count));
  }
  end.release();
  waits.join();
  dprintf(out, "%s", said.c_str());
  _exit(0);
}

TEST_F(SignalsDeathTest, ProcessThatIsAsked_SaysWhereEachThreadStands_AndGoesOn) {
  EXPECT_EXIT(AsksWithAnotherThread(true), testing::ExitedWithCode(0),
              "\\*\\*\\* thread [0-9]+ stands at:\n(.|\n)*test_unit_core_posix");
}

TEST_F(SignalsDeathTest, ThreadThatBlocksSignals_DoesNotKeepTheOthersFromAnswering) {
  EXPECT_EXIT(AsksWithAnotherThread(false), testing::ExitedWithCode(0),
              "stands at:\n(.|\n)*test_unit_core_posix(.|\n)*does not answer");
}

TEST_F(SignalsDeathTest, ProcessThatIsAskedToEnd_SaysNothing) {
  EXPECT_EXIT(
      {
        TellOfFaults();
        raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "^$");
}

}  // namespace
}  // namespace phalanx

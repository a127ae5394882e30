#include "core/base/mutex.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <concepts>
#include <ctime>
#include <optional>
#include <thread>

#include "absl/time/time.h"

namespace {
thread_local std::optional<clockid_t> clock_of_last_wait;
}  // namespace

// In front of the system's: what a timed wait asks the system for.
extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      clockid_t clock, const timespec* deadline) {
  static const auto real = reinterpret_cast<decltype(&pthread_cond_clockwait)>(
      dlsym(RTLD_NEXT, "pthread_cond_clockwait"));
  clock_of_last_wait = clock;
  return real(condition, mutex, clock, deadline);
}

namespace phalanx {
namespace {

using std::chrono::steady_clock;

template <typename Deadline>
concept CanWaitUntil = requires(CondVar changed, Mutex mu, Deadline deadline) {
  changed.WaitUntil(&mu, deadline);
};
static_assert(CanWaitUntil<steady_clock::time_point>);
static_assert(!CanWaitUntil<absl::Time> && !CanWaitUntil<std::chrono::system_clock::time_point>,
              "wall time is no deadline");

// Setting the system's clock moves no wait by another one.
TEST(CondVarTest, TimedWait_EndsByTheMonotonicClock) {
  Mutex mu;
  CondVar changed;
  MutexLock lock(&mu);
  const auto deadline = steady_clock::now() + std::chrono::milliseconds(20);
  while (!changed.WaitUntil(&mu, deadline)) continue;
  EXPECT_GE(steady_clock::now(), deadline);
  EXPECT_EQ(clock_of_last_wait, CLOCK_MONOTONIC);
}

TEST(CondVarTest, DeadlinePassed_EndsAtOnce) {
  Mutex mu;
  CondVar changed;
  MutexLock lock(&mu);
  EXPECT_TRUE(changed.WaitUntil(&mu, steady_clock::time_point::min()));
}

TEST(CondVarTest, Signal_EndsAWaitBeforeItsDeadline) {
  Mutex mu;
  CondVar changed;
  bool ready = false;
  std::jthread other([&] {
    MutexLock lock(&mu);
    ready = true;
    changed.Signal();
  });
  MutexLock lock(&mu);
  while (!ready) ASSERT_FALSE(changed.WaitUntil(&mu, steady_clock::time_point::max()));
}

}  // namespace
}  // namespace phalanx

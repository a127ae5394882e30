// In a process without threads of others, which a signal would end: they do not hold it back.
#include "client/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace phalanx::client {
namespace {

TEST(InterruptTest, Signal_IsToldAndDoesNotEndTheProcess) {
  absl::Notification told;
  const Interrupt interrupt({SIGTERM}, [&](int signal) {
    EXPECT_EQ(signal, SIGTERM);
    told.Notify();
  });
  kill(getpid(), SIGTERM);
  told.WaitForNotification();
}

}  // namespace
}  // namespace phalanx::client

// A driver that does not answer while the daemon starts.
#include "worker/agent/driver_deadline.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

// Stands in for a call into the driver.
void NeverReturn() {
  while (true) pause();
}

TEST(DriverDeadlineTest, CallThatNeverReturns_EndsTheProgram_AndSaysWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const DriverDeadline deadline(absl::Milliseconds(50));
        NeverReturn();
      },
      ::testing::ExitedWithCode(1),
      "phalanx-worker: the driver of the GPUs has not answered for 50ms; look at dmesg");
}

TEST(DriverDeadlineTest, CallsThatReturn_EndNothing) {
  for (int call = 0; call < 100; ++call) const DriverDeadline deadline(absl::Minutes(10));
}

}  // namespace
}  // namespace phalanx::agent

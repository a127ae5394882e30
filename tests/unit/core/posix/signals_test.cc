#include "core/posix/signals.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
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
      testing::KilledBySignal(SIGSEGV), "Segmentation fault, by:(.|\n)*test_unit_core_posix");
  EXPECT_EXIT(
      {
        TellOfFaults();
        abort();
      },
      testing::KilledBySignal(SIGABRT), "Aborted, by:(.|\n)*abort");
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

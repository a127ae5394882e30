#include "core/posix/run_delay.h"

#include "gtest/gtest.h"

namespace phalanx {
namespace {

TEST(RunDelayTest, SecondFigure_IsIt) {
  EXPECT_EQ(ParseRunDelay("81234 1500000000 37"), absl::Milliseconds(1500));
  EXPECT_EQ(ParseRunDelay("81234 0 37\n"), absl::ZeroDuration());
}

TEST(RunDelayTest, WhatSaysNothing_IsZero) {
  for (const char* said : {"", "81234", "81234 x 37", "81234 -5 37", "81234 5"})
    EXPECT_EQ(ParseRunDelay(said), absl::ZeroDuration()) << said;
  EXPECT_EQ(RunDelay("0"), absl::ZeroDuration()) << "there is no such process";
}

}  // namespace
}  // namespace phalanx

#include "worker/agent/check_output.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

using job::CheckVerdict;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(CheckOutputTest, Line_CountsOnceItHasEnded) {
  CheckOutput output;
  EXPECT_FALSE(output.Append("{\"devices\":[{\"device\":2,\"verdict\""));
  EXPECT_FALSE(output.Append(":\"VERDICT_PASSED\"}]}"));
  EXPECT_THAT(output.devices(), IsEmpty());
  EXPECT_TRUE(output.Append("\n{\"devices\""));
  ASSERT_THAT(output.devices(), SizeIs(1));
  EXPECT_EQ(output.devices()[0].device, 2);
  EXPECT_EQ(output.devices()[0].verdict, CheckVerdict::kPassed);
}

TEST(CheckOutputTest, WordsOfLibraries_SayNothingOfADevice) {
  CheckOutput output;
  EXPECT_FALSE(
      output.Append("[W1126 NNPACK.cpp:57] Could not initialize NNPACK\n\n{}\n{\"a\":1}\n"));
  EXPECT_THAT(output.devices(), IsEmpty());
  EXPECT_TRUE(output.Append("{\"loopback\":{\"bytesPerSecond\":3e9}}\n"));
  EXPECT_TRUE(output.loopback().has_value());
}

TEST(CheckOutputTest, DeviceWithoutAVerdict_WasSpokenOf) {
  CheckOutput output;
  EXPECT_TRUE(
      output.Append("{\"devices\":[{\"reason\":\"somebody else has all of its memory\"}]}\n"));
  ASSERT_THAT(output.devices(), SizeIs(1));
  EXPECT_EQ(output.devices()[0].device, 0);
  EXPECT_EQ(output.devices()[0].verdict, CheckVerdict::kNone);
}

TEST(CheckOutputTest, TalkWithoutEnd_IsNotKept) {
  CheckOutput output;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(output.Append(std::string(1 << 16, 'x')));
  EXPECT_FALSE(output.Append("\n{\"devices\":[{\"device\":1}]}\n"));
  EXPECT_THAT(output.devices(), IsEmpty());
}

}  // namespace
}  // namespace phalanx::agent

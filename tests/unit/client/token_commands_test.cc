#include "client/token_commands.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::client {
namespace {

constexpr char kRule[] = "must be a duration in h, m and s, from 1m to 720h, such as 90m";

TEST(TokenCommandsTest, TtlFault_InDaysOrWeeks_TellsTheSameTimeInHours) {
  EXPECT_EQ(TtlFault("30d"), std::string(kRule) + "; 30d is 720h");
  EXPECT_EQ(TtlFault("2w"), std::string(kRule) + "; 2w is 336h");
  EXPECT_EQ(TtlFault("60d"), std::string(kRule) + "; 60d is 1440h");
}

TEST(TokenCommandsTest, TtlFault_OfNoTime_TellsTheRule) {
  for (const char* text : {"", "30", "soon", "d", "-1d", "0d", "1.5d", "99999999999999999999d"})
    EXPECT_EQ(TtlFault(text), kRule) << text;
}

// As the coordinator has it (join_tokens_test.cc).
TEST(TokenCommandsTest, TtlFault_OfATimeThatIsTooShortOrTooLong_TellsTheRule) {
  for (const char* text : {"0s", "59s", "721h", "999h"}) EXPECT_EQ(TtlFault(text), kRule) << text;
}

TEST(TokenCommandsTest, TtlFault_OfATime_IsNone) {
  for (const char* text : {"1m", "30m", "1h30m", "720h", "90s"})
    EXPECT_EQ(TtlFault(text), "") << text;
}

}  // namespace
}  // namespace phalanx::client

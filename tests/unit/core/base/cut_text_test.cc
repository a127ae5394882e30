#include "core/base/cut_text.h"

#include "gtest/gtest.h"

namespace phalanx {
namespace {

TEST(CutTextTest, NoLongerThanAllowed_StaysAsItIs) {
  EXPECT_EQ(CutText("", 0), "");
  EXPECT_EQ(CutText("abcd", 4), "abcd");
}

TEST(CutTextTest, Longer_SaysHowMuchIsMissing) {
  EXPECT_EQ(CutText("abcdef", 4), "abcd... (2 bytes more)");
}

TEST(CutTextTest, Character_IsNotSplit) {
  const std::string euro = "\xE2\x82\xAC";
  EXPECT_EQ(CutText("ab" + euro, 3), "ab... (3 bytes more)");
  EXPECT_EQ(CutText("ab" + euro, 4), "ab... (3 bytes more)");
  EXPECT_EQ(CutText(euro + "!!", 3), euro + "... (2 bytes more)");
}

}  // namespace
}  // namespace phalanx

#include "core/job/json.h"

#include <string>

#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const std::string& text, size_t nodes_max = 100) {
  return std::string(ParseJson(text, nodes_max).status().message());
}

TEST(EmitJsonTest, OnlyJsonsOwnNumbers_AreBare) {
  const auto tree = wire::ParseYaml("[1, -0.5, 1e-3, .5, +1, 007, true, null, word, \"1\"]");
  ASSERT_TRUE(tree.ok());
  EXPECT_EQ(
      EmitJson(*tree),
      "[\n  1,\n  -0.5,\n  1e-3,\n  \".5\",\n  \"+1\",\n  \"007\",\n  true,\n  null,\n  \"word\",\n"
      "  \"1\"\n]\n");
}

TEST(ParseJsonTest, ReadsWhatEmitJsonWrites) {
  const std::string text = EmitJson(*wire::ParseYaml(
      "{a: [1, -2, 0.25, 18446744073709551615], b: {}, c: [], d: {e: \"1\", f: null, g: true}}"));
  const auto tree = ParseJson(text, 100);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(EmitJson(*tree), text);
  EXPECT_TRUE(tree->entries[3].value.entries[0].value.quoted);
}

TEST(ParseJsonTest, AwkwardStrings_ReadBackAsThemselves) {
  for (const std::string text :
       {"", "\"", "\\", "a\nb\tc\r", "\x01\x1f", "\xC3\xA9", "{\"a\":1}"}) {
    const auto tree = ParseJson(JsonString(text), 1);
    ASSERT_TRUE(tree.ok()) << text << tree.status();
    EXPECT_EQ(tree->scalar, text);
  }
}

TEST(ParseJsonTest, RepeatedKeys_AreKept) {
  const auto tree = ParseJson("{\"a\": 1, \"a\": 2}", 100);
  ASSERT_TRUE(tree.ok());
  ASSERT_EQ(tree->entries.size(), 2u);
  EXPECT_EQ(tree->entries[1].value.scalar, "2");
}

TEST(ParseJsonTest, WhatIsNoJson_IsRefusedWithItsPlace) {
  EXPECT_EQ(Refusal("{\"a\": }"), "is no JSON at byte 7");
  for (const char* text : {"", "{", "{} {}", "nan", "\"\xFF\"", "'a'", "1e999"}) {
    EXPECT_THAT(Refusal(text), HasSubstr("is no JSON at byte")) << text;
  }
}

TEST(ParseJsonTest, DepthAndSize_AreBounded) {
  EXPECT_TRUE(ParseJson(std::string(32, '[') + std::string(32, ']'), 100).ok());
  EXPECT_EQ(Refusal(std::string(100000, '[')), "is nested deeper than 32 levels");
  EXPECT_TRUE(ParseJson("[1, 2]", 3).ok());
  EXPECT_EQ(Refusal("[1, 2, 3]", 3), "has more than 3 values");
}

}  // namespace
}  // namespace phalanx::job

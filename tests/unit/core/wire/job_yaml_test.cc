#include "core/wire/job_yaml.h"

#include <fstream>
#include <sstream>
#include <string>

#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/paths.h"

namespace phalanx::wire {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Rule(absl::string_view text) {
  const auto violations = ViolationsOf(ParseYaml(text).status());
  return violations.size() == 1 ? violations[0].rule : "";
}

TEST(ParseYamlTest, KeepsWhatAnInterpreterWouldLose) {
  const auto tree = ParseYaml("a: 007\nb: \"007\"\na: ~\n");
  ASSERT_TRUE(tree.ok());
  ASSERT_EQ(tree->entries.size(), 3u);
  EXPECT_EQ(tree->entries[0].value.scalar, "007");
  EXPECT_FALSE(tree->entries[0].value.quoted);
  EXPECT_TRUE(tree->entries[1].value.quoted);
  EXPECT_EQ(tree->entries[2].key, "a");
  EXPECT_EQ(tree->entries[2].value.kind, job::Tree::Kind::kNull);
  EXPECT_EQ(tree->entries[1].value.line, 2);
  EXPECT_EQ(tree->entries[1].value.column, 4);
}

TEST(ParseYamlTest, SyntaxError_SaysWhere) {
  EXPECT_THAT(Rule("a: 1\nb: [1, 2\nc: 3"), StartsWith("line "));
  EXPECT_THAT(Rule("a: 1\n b: 2"), StartsWith("line 2, column "));
}

TEST(ParseYamlTest, SecondDocument_IsRefused) {
  EXPECT_THAT(Rule("a: 1\n---\nb: 2"), HasSubstr("one document only"));
}

TEST(ParseYamlTest, Alias_IsTheAnchoredValue) {
  const auto tree = ParseYaml("a: &x {k: [1, 2]}\nb: *x\n");
  ASSERT_TRUE(tree.ok());
  EXPECT_EQ(EmitYaml(tree->entries[1].value), EmitYaml(tree->entries[0].value));
}

TEST(ParseYamlTest, AliasBomb_IsRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1) + " ";
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) text += (k > 0 ? ", " : "") + before;
    text += "]\n";
  }
  EXPECT_THAT(Rule(text), HasSubstr("more than 100000 values"));
}

TEST(ParseYamlTest, SelfReference_IsRefused) { EXPECT_FALSE(ParseYaml("a: &x [*x]").ok()); }

TEST(ParseYamlTest, DeepNesting_IsRefused) {
  EXPECT_THAT(Rule(std::string(100, '[') + std::string(100, ']')),
              HasSubstr("nested deeper than 32"));
  EXPECT_FALSE(ParseYaml(std::string(200'000, '[')).ok());
  EXPECT_FALSE(ParseYaml(std::string(200'000, '{')).ok());
  std::string indented;
  for (int i = 0; i < 1000; ++i) indented += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_FALSE(ParseYaml(indented).ok());
}

TEST(ParseYamlTest, TooLong_IsRefused) {
  EXPECT_THAT(Rule(std::string(kDocumentBytesMax + 1, 'a')), HasSubstr("at most 1048576"));
}

TEST(ParseYamlTest, BytesThatAreNoText_AreRefused) {
  EXPECT_THAT(Rule(absl::string_view("a: \0b", 5)), HasSubstr("control characters"));
  EXPECT_THAT(Rule("a: \"\\x1e\""), HasSubstr("control characters"));
  EXPECT_THAT(Rule("a: \xff\xfe"), HasSubstr("not UTF-8"));
  EXPECT_THAT(Rule("a: \xed\xa0\x80"), HasSubstr("not UTF-8"));
}

TEST(ParseYamlTest, Tags_AreRefused) { EXPECT_THAT(Rule("a: !!binary aGk="), HasSubstr("tags")); }

TEST(ParseYamlTest, ComplexKeys_AreRefused) {
  EXPECT_THAT(Rule("? [a, b]\n: 1"), HasSubstr("a key must be a word"));
}

TEST(ParseYamlTest, BracketsWithoutEnd_AreNestedTooDeep) {
  EXPECT_THAT(Rule(std::string(100'000, '[')), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(Rule("a: " + std::string(100'000, '{')), HasSubstr("nested deeper than 32"));
}

TEST(EmitYamlTest, AwkwardStrings_ReadBackAsThemselves) {
  for (const char* text :
       {"",   "~",  "true", "17", "a: b", "- a", "#x",  "\"q\"",    "a\nb", "  pad  ", "*x",
        "&x", "!x", "%x",   "@x", "`x`",  "{a}", "[a]", "\xC3\xA9", "'",    "a #b"}) {
    job::Tree tree;
    tree.kind = job::Tree::Kind::kScalar;
    tree.scalar = text;
    tree.quoted = true;
    const auto back = ParseYaml(EmitYaml(tree));
    ASSERT_TRUE(back.ok()) << text << back.status();
    EXPECT_EQ(back->scalar, text);
    const auto json = ParseYaml(job::EmitJson(tree));
    ASSERT_TRUE(json.ok()) << text << json.status();
    EXPECT_EQ(json->scalar, text);
  }
}

TEST(EmitYamlTest, TextThatATerminalWouldObey_ReadsBackAsItselfWhereItIsEscaped) {
  for (const char* said : {"a\u202Eb", "a\u200Bb", "\u00AD", "\U000E0041", "plain", "\u00E9"}) {
    job::Tree tree;
    tree.kind = job::Tree::Kind::kMapping;
    tree.entries.push_back({said, job::ScalarTree(said, false)});
    const std::string text = EscapedText(EmitYaml(tree), Escapes::kYaml);
    EXPECT_EQ(EscapedText(text, Escapes::kYaml), text);
    const auto back = ParseYaml(text);
    ASSERT_TRUE(back.ok()) << text << back.status();
    ASSERT_EQ(back->entries.size(), 1u) << text;
    EXPECT_EQ(back->entries[0].key, said) << text;
    EXPECT_EQ(back->entries[0].value.scalar, said) << text;
  }
}

TEST(ReadJobFileTest, Examples_AreRight) {
  for (const char* name : {"emoji-captions.yaml", "language-tp3.yaml"}) {
    std::ifstream file(tests::SourceDir() + "/examples/" + name);
    std::stringstream text;
    text << file.rdbuf();
    const auto job = ReadJobFile(text.str(), job::Purpose::kSubmit);
    EXPECT_TRUE(job.ok()) << name << ": " << job.status();
  }
}

TEST(ReadJobFileTest, SyntaxError_IsTheOnlyViolation) {
  const auto job = ReadJobFile("a: [", job::Purpose::kSubmit);
  EXPECT_EQ(ViolationsOf(job.status()).size(), 1u);
}

}  // namespace
}  // namespace phalanx::wire

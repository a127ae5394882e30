#include "core/job/report.h"

#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

Tree Parse(const char* text) { return *wire::ParseYaml(text); }

TEST(ReportTest, Sound_LooksUpwardsAndDownwards) {
  const Tree tree = Parse("a: {b: [1, {c: 2}], bb: 3}");
  Report report(tree);
  report.Add("a.b[1].c", "is wrong");
  EXPECT_FALSE(report.Sound("a"));
  EXPECT_FALSE(report.Sound("a.b"));
  EXPECT_FALSE(report.Sound("a.b[1]"));
  EXPECT_FALSE(report.Sound("a.b[1].c.deeper"));
  EXPECT_TRUE(report.Sound("a.b[0]"));
  EXPECT_TRUE(report.Sound("a.bb"));
}

TEST(ReportTest, MissingField_StandsAtItsMapping) {
  const Tree tree = Parse("x: 1\na:\n  b: 1\nz: 1");
  Report report(tree);
  report.Add("z", "late");
  report.Add("a.missing", "is required");
  const std::vector<Violation> sorted = report.Sorted();
  ASSERT_EQ(sorted.size(), 2u);
  EXPECT_EQ(ToString(sorted[0]), "a.missing: is required");
  EXPECT_EQ(sorted[0].line, 3);
  EXPECT_EQ(ToString(sorted[1]), "z: 1: late");
}

TEST(ReportTest, ShownValue_IsOneLineAndCutBetweenCharacters) {
  EXPECT_EQ(ShowValue(Parse("[1, \"a\", {b: null}]")), "[1, \"a\", {b: null}]");
  std::string long_text = "a";
  for (int i = 0; i < 100; ++i) long_text += "\xC3\xA9";
  Tree tree;
  tree.kind = Tree::Kind::kScalar;
  tree.scalar = long_text;
  const std::string shown = ShowValue(tree);
  EXPECT_EQ(shown, long_text.substr(0, 79) + "...");
}

}  // namespace
}  // namespace phalanx::job

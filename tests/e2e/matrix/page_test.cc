// Which lines of the page of faults may lack a time.
#include "tests/e2e/matrix/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace phalanx::e2e {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSaysSo[] =
    "Where a time is *not measured*, the line was last tried before times of its kind were taken "
    "down, if at all.\n";

Row Killed() {
  return {.section = "Faults", .fault = "kill", .expected = {"shrink", "RankKilled", {3}, 1}};
}

TEST(PageTest, LineThatWasTried_TellsBothTimes) {
  const std::string page =
      PageOf({{Killed(), Killed().expected, {"< 1 s"}, {absl::Milliseconds(20)}}});
  EXPECT_THAT(page,
              HasSubstr("| kill |  | shrink | RankKilled | 3 | 1 | 0.02 s | 0.35 s | < 1 s |"));
  EXPECT_THAT(UntoldTimes(page, {Killed()}), IsEmpty());
  EXPECT_EQ(WithoutTimes(page), WithoutTimes(ExpectedPage({Killed()})));
}

TEST(PageTest, LineWithoutTimes_IsNamedForEach) {
  EXPECT_THAT(UntoldTimes(ExpectedPage({Killed()}), {Killed()}),
              ElementsAre(HasSubstr("how soon there was a verdict: | kill |"),
                          HasSubstr("how soon all were back: | kill |")));
}

TEST(PageTest, WhereNobodyIsToBlame_NoTimeIsDue) {
  const Row row{.section = "Faults", .fault = "stop for 1s", .expected = {.what = "trains on"}};
  EXPECT_THAT(UntoldTimes(ExpectedPage({row}), {row}), IsEmpty());
}

TEST(PageTest, JobThatFails_HasAVerdictAndIsNotBack) {
  const Row row{.section = "Faults", .fault = "oom", .expected = Fails("OutOfMemory", 3)};
  EXPECT_THAT(UntoldTimes(ExpectedPage({row}), {row}), ElementsAre(HasSubstr("verdict")));
}

TEST(PageTest, RowWhoseTimesNobodyMayKnow_SaysWhyInTheirPlace) {
  Row row = Killed();
  row.no_detected = "it was cut off";
  row.no_back = "nobody saw it";
  const std::string page = ExpectedPage({row});
  EXPECT_THAT(page, HasSubstr("| not known: it was cut off | 0.35 s | not known: nobody saw it |"));
  EXPECT_THAT(UntoldTimes(page, {row}), IsEmpty());
  EXPECT_THAT(UntoldTimes(page, {Killed()}), ElementsAre(HasSubstr("verdict"), HasSubstr("back")))
      << "it has no such reason";
}

TEST(PageTest, NotMeasured_IsTakenFromAPageThatSaysSoOfItselfAlone) {
  const std::string page = absl::StrReplaceAll(
      ExpectedPage({Killed()}),
      {{"| 1 |  | 0.35 s |  |", "| 1 | not measured | 0.35 s | not measured |"}});
  EXPECT_THAT(page, HasSubstr("not measured"));
  EXPECT_EQ(UntoldTimes(page, {Killed()}).size(), 2u);
  const std::string noted = absl::StrReplaceAll(
      page, {{"A rank that stays slow", absl::StrCat(kSaysSo, "A rank that stays slow")}});
  EXPECT_THAT(UntoldTimes(noted, {Killed()}), IsEmpty());
  EXPECT_EQ(WithoutTimes(noted), WithoutTimes(page));
}

TEST(PageTest, Day_StandsBeforeTheFirstTable) {
  const std::string page = ExpectedPage({Killed()});
  const std::string dated = Dated(page, "2026-11-29");
  EXPECT_THAT(dated, HasSubstr("\nAll times are of 2026-11-29.\n\n## Faults\n"));
  EXPECT_EQ(WithoutTimes(dated), WithoutTimes(page));
}

}  // namespace
}  // namespace phalanx::e2e

#include "core/job/scalar.h"

#include <cmath>
#include <limits>

#include "core/base/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::Optional;
using ::testing::SizeIs;

TEST(ScalarTest, Integer_IsDigitsOnly) {
  EXPECT_THAT(ParseInteger("-12"), Optional(-12));
  EXPECT_THAT(ParseInteger("9223372036854775807"), Optional(std::numeric_limits<int64_t>::max()));
  for (const char* text :
       {"", "-", "1.0", "1e3", "0x10", " 1", "1 ", "9223372036854775808", "1_000"}) {
    EXPECT_THAT(ParseInteger(text), Eq(std::nullopt)) << text;
  }
}

TEST(ScalarTest, Size_TakesBinarySuffixes) {
  EXPECT_THAT(ParseSize("16Gi"), Optional(int64_t{16} << 30));
  EXPECT_THAT(ParseSize("4Ki"), Optional(4096));
  EXPECT_THAT(ParseSize("7"), Optional(7));
  for (const char* text : {"Gi", "1G", "1.5Gi", "9999999999Ti"}) {
    EXPECT_THAT(ParseSize(text), Eq(std::nullopt)) << text;
  }
}

TEST(ScalarTest, Number_ReadsScientificAndYamlsInfinities) {
  EXPECT_THAT(ParseNumber("1e-3"), Optional(1e-3));
  EXPECT_THAT(ParseNumber(".5"), Optional(0.5));
  EXPECT_TRUE(std::isnan(*ParseNumber(".nan")));
  for (const char* text : {"", "nan", "inf", "1e", "e5", "--1", "0x1p3", "1.2.3", "-", "."}) {
    EXPECT_THAT(ParseNumber(text), Eq(std::nullopt)) << text;
  }
}

TEST(ScalarTest, FormattedNumber_ReadsBackAsTheSameBits) {
  Prng prng(1);
  for (int i = 0; i < 2000; ++i) {
    const double value = std::ldexp(prng.Uniform() - 0.5, static_cast<int>(prng.Below(200)) - 100);
    EXPECT_THAT(ParseNumber(FormatNumber(value)), Optional(value));
  }
}

TEST(ScalarTest, Duration_NeedsAUnit) {
  EXPECT_THAT(ParseDuration("1h30m"), Optional(absl::Minutes(90)));
  for (const char* text : {"", "30", "0", "s", "-3s", "inf", "2 h"}) {
    EXPECT_THAT(ParseDuration(text), Eq(std::nullopt)) << text;
  }
}

TEST(ExpandBracesTest, Range_KeepsItsWidth) {
  EXPECT_THAT(*ExpandBraces("a-{08..11}.tar"),
              ElementsAre("a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"));
}

TEST(ExpandBracesTest, SeveralBraces_Multiply) {
  EXPECT_THAT(*ExpandBraces("{x,y}{0..1}"), ElementsAre("x0", "x1", "y0", "y1"));
}

TEST(ExpandBracesTest, WithoutBraces_IsItself) {
  EXPECT_THAT(*ExpandBraces("a.tar"), ElementsAre("a.tar"));
}

TEST(ExpandBracesTest, Malformed_IsRefused) {
  for (const char* text : {"{", "}", "{a", "{a,{b,c}}", "{a}", "{}", "{3..1}", "{a..c}",
                           "{0..65536}", "{0..999}{0..999}", "{1..99999999999999999999}"}) {
    EXPECT_FALSE(ExpandBraces(text).ok()) << text;
  }
  EXPECT_FALSE(ExpandBraces(std::string(5000, 'a')).ok());
  EXPECT_THAT(*ExpandBraces("{0..65535}"), SizeIs(65536));
}

TEST(ExpandBracesTest, NamesOfManyBytes_AreRefused) {
  const std::string long_name(127, 'a');
  EXPECT_THAT(*ExpandBraces(long_name.substr(5) + "{00000..65535}"),
              SizeIs(65536));  // 127 bytes each
  for (const std::string& text :
       {long_name + "{00000..65535}", "{00000..65535}" + long_name,
        "{0..9}" + long_name + "{0..9}" + std::string(800, 'b') + "{000..654}"}) {
    EXPECT_FALSE(ExpandBraces(text).ok()) << text;
  }
}

TEST(NearestNameTest, FindsTypingErrorsAndNothingElse) {
  const absl::string_view names[] = {"steps", "schedule", "learning_rate", "tp"};
  EXPECT_THAT(NearestName("stpes", names), Optional(Eq("steps")));
  EXPECT_THAT(NearestName("sched", names), Optional(Eq("schedule")));
  EXPECT_THAT(NearestName("learningrate", names), Optional(Eq("learning_rate")));
  EXPECT_THAT(NearestName("frobnicate", names), Eq(std::nullopt));
}

}  // namespace
}  // namespace phalanx::job

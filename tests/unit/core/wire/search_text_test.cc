#include "core/wire/search_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/job/json.h"
#include "core/wire/job_yaml.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"

namespace phalanx::wire {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kExample = tests::SourceDir() + "/examples/emoji-captions.yaml";

schedule::SearchResult Search(const job::JobSpec& spec, const schedule::SearchOptions& options) {
  auto result = schedule::SearchLayouts(spec, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

TEST(SearchTextTest, JobFile_OfEachProposal_IsItsJob) {
  const std::string text = support::ReadFile(kExample);
  const auto read = ReadJobFile(text, job::Purpose::kSubmit);
  ASSERT_TRUE(read.ok()) << read.status();
  for (const auto& proposal : Search(read->spec, {.devices = 6, .best = 50}).best) {
    const auto written = WithLayoutOf(text, proposal.spec, {});
    ASSERT_TRUE(written.ok()) << written.status();
    const auto again = ReadJobFile(*written, job::Purpose::kSubmit);
    ASSERT_TRUE(again.ok()) << again.status() << *written;
    EXPECT_EQ(EmitYaml(job::WriteJobSpec(again->spec)), EmitYaml(job::WriteJobSpec(proposal.spec)));
  }
}

TEST(SearchTextTest, JobFile_KeepsWhatIsNotOfTheLayout) {
  const std::string text = support::ReadFile(kExample);
  const auto read = ReadJobFile(text, job::Purpose::kSubmit);
  const auto written = WithLayoutOf(text, Search(read->spec, {.devices = 2}).best.front().spec, {});
  ASSERT_TRUE(written.ok());
  EXPECT_THAT(*written, HasSubstr("name: emoji-captions"));
  EXPECT_THAT(*written, HasSubstr("devices: 2"));
}

TEST(SearchTextTest, Json_HasEveryProposal) {
  const auto read = ReadJobFile(support::ReadFile(kExample), job::Purpose::kSubmit);
  const schedule::SearchOptions options{.devices = 4, .device_memory = 1 << 30, .best = 3};
  const auto result = Search(read->spec, options);
  const std::string text = SearchJson(result, options);
  const auto tree = job::ParseJson(text, 10'000);
  ASSERT_TRUE(tree.ok()) << tree.status();
  for (const char* key :
       {"\"kind\": \"PlanSearch\"", "\"step\"", "\"memory\"", "\"bubble\"", "\"slower\"",
        "\"parts\"", "\"device_memory\": 1073741824", "\"devices\": 4"}) {
    EXPECT_THAT(text, HasSubstr(key));
  }
}

TEST(SearchTextTest, Table_NamesLayoutsAndReasons) {
  const auto read = ReadJobFile(support::ReadFile(kExample), job::Purpose::kSubmit);
  schedule::SearchOptions options{.devices = 4, .best = 3};
  const auto result = Search(read->spec, options);
  const std::string text = SearchTable(result, options);
  EXPECT_THAT(text, HasSubstr("4 devices of kind nominal; 1 item a sample; "));
  EXPECT_THAT(text, HasSubstr("    " + LayoutText(result.best[0].spec) + "\n"));
  EXPECT_THAT(absl::StrReplaceAll(text, {{"\n      ", " "}}),
              HasSubstr("    slower than 2: " + result.best[2].slower + "\n"));
  for (const absl::string_view line : absl::StrSplit(text, '\n'))
    EXPECT_LT(line.size(), 80) << line;
  EXPECT_THAT(text, HasSubstr("without --device-memory no layout is too large"));
  EXPECT_THAT(text, Not(HasSubstr("links between nodes")));
  options.devices = 16;
  options.node_devices = 4;
  EXPECT_THAT(SearchTable(result, options), HasSubstr("links between nodes"));
}

TEST(SearchTextTest, Table_OfOneLayoutOfAShortStep_CountsOneAndShowsItsTime) {
  const auto read = ReadJobFile(support::ReadFile(kExample), job::Purpose::kSubmit);
  const schedule::SearchOptions options{.devices = 2, .best = 1};
  schedule::SearchResult result = Search(read->spec, options);
  result.layouts = result.simulated = 1;
  result.best.front().step = 42e-6;
  const std::string text = SearchTable(result, options);
  EXPECT_THAT(text, HasSubstr("; 1 layout, 1 setting simulated\n"));
  EXPECT_THAT(text, HasSubstr("\n 1    0.042 ms  "));
}

TEST(SearchTextTest, WhatIsSurvived_StandsBesideEachProposal_AndWhoIsFasterBehindIt) {
  const auto read = ReadJobFile(support::ReadFile(kExample), job::Purpose::kSubmit);
  const schedule::SearchOptions options{.devices = 2, .best = 2};
  schedule::SearchResult result = Search(read->spec, options);
  ASSERT_EQ(result.best.size(), 2);
  result.best[0].survives = schedule::Survived::kSome;
  result.best[1].survives = schedule::Survived::kNone;
  result.best[1].step = result.best[0].step * 0.99;
  result.best[1].slower = "is no slower, but the loss of more devices costs steps";
  const std::string table = SearchTable(result, options);
  EXPECT_THAT(table, HasSubstr("  SURVIVES  MICRO  SCHEDULE\n"));
  EXPECT_THAT(table, ContainsRegex("\n 1 .* some "));
  EXPECT_THAT(table, ContainsRegex("\n 2 .* none "));
  EXPECT_THAT(table, HasSubstr("    behind 1: is no slower, but the loss of more devices"));
  const std::string json = SearchJson(result, options);
  EXPECT_THAT(json, HasSubstr("\"survives\": \"some\""));
  EXPECT_THAT(json, HasSubstr("\"survives\": \"none\""));
}

}  // namespace
}  // namespace phalanx::wire

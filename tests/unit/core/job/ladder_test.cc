// Ladders that cannot be met, and those of jobs that tolerate no loss.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core/job/document.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string WithLadder(absl::string_view ladder, absl::string_view document = kDocument) {
  return With("  optimizer:", absl::StrCat("  recovery: {ladder: ", ladder, "}\n  optimizer:"),
              document);
}

// Neither replicas nor tensor ranks nor stages: a rank of each module.
std::string OfOneRankEach() {
  return With("ranks: 4, tp: 2, pp: 2", "ranks: 1", With("ranks: 2, tp: 1", "ranks: 1"));
}

struct Unmet {
  const char* name;
  const char* ladder;
  const char* lacking;
};

class UnmetLadderTest : public ::testing::TestWithParam<Unmet> {};

TEST_P(UnmetLadderTest, Submit_SaysWhatEachRungNeeds) {
  const std::string text =
      WithLadder(GetParam().ladder, With("offset: 2", "offset: 1", OfOneRankEach()));
  EXPECT_THAT(Wrong(text), ElementsAre(absl::StrCat(
                               "spec.recovery.ladder: ", GetParam().ladder,
                               ": none of its rungs can ever be taken: ", GetParam().lacking,
                               "; [] is for a job that ends with its first loss")));
}

constexpr Unmet kUnmet[] = {
    {"Spare", "[spare]", "spare needs resources.spares"},
    {"Shrink", "[shrink]", "shrink needs a module with tp above 1"},
    {"DropReplica", "[drop-replica]", "drop-replica needs a module with dp above 1"},
    {"Restart", "[restart]", "restart needs a checkpoint section, or a module on several ranks"},
    {"Several", "[spare, shrink, drop-replica, restart]",
     "spare needs resources.spares, shrink needs a module with tp above 1, drop-replica needs a "
     "module with dp above 1, restart needs a checkpoint section, or a module on several ranks"},
};
INSTANTIATE_TEST_SUITE_P(Rungs, UnmetLadderTest, ::testing::ValuesIn(kUnmet),
                         [](const auto& info) { return std::string(info.param.name); });

// One rung that the job has what it needs for is enough.
TEST(LadderTest, RungThatMayBeTaken_IsSound) {
  const std::string one = With("offset: 2", "offset: 1", OfOneRankEach());
  EXPECT_THAT(Wrong(WithLadder("[spare, wait]", one)), IsEmpty());
  EXPECT_THAT(
      Wrong(WithLadder("[spare]", With("steps: 300", "steps: 300\n  resources: {spares: 1}", one))),
      IsEmpty());
  EXPECT_THAT(Wrong(WithLadder("[restart]",
                               With("steps: 300", "steps: 300\n  checkpoint: {every: 50}", one))),
              IsEmpty());
  for (const char* ladder : {"[shrink]", "[drop-replica]", "[restart]", "[spare, shrink]"})
    EXPECT_THAT(Wrong(WithLadder(ladder)), IsEmpty()) << ladder;
}

TEST(LadderTest, LadderWithoutRungs_IsWarnedOf) {
  const auto job = wire::ReadJobFile(WithLadder("[]"), Purpose::kSubmit);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->warnings,
              ElementsAre("spec.recovery.ladder: the job tolerates no loss: it ends with the first "
                          "device that it loses"));
}

}  // namespace
}  // namespace phalanx::job

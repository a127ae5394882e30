#include "core/plan/layout_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/loss.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/after.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using testing::ElementsAre;
using testing::IsEmpty;

// vision dp 4 on ranks 0 to 3, language tp 2 dp 2 on 4 to 7.
job::JobSpec VisionBesideLanguage() {
  return AJob()
      .Module("vision", ClipVision(), {.dp = 4})
      .Module("language", Llama(), {.tp = 2, .dp = 2})
      .Edge("vision", "language", {.projector = 32});
}

TEST(LayoutChangeTest, ReplicasAndWidths_AreNamedByModule) {
  const Plan whole = MustPlan(VisionBesideLanguage());
  EXPECT_THAT(ToWords(ChangesBetween(whole, whole)), IsEmpty());
  EXPECT_THAT(ToWords(ChangesBetween(whole, Without(whole, {3, 6}))),
              ElementsAre("vision dp 4 -> 3", "language tp 2 -> 1 in replica 1"));
  EXPECT_THAT(ToWords(ChangesBetween(whole, Without(whole, {4, 6}))),
              ElementsAre("language tp 2 -> 1 in replicas 0, 1"));
  EXPECT_THAT(ToWords(ChangesBetween(whole, Without(whole, {4, 5}))),
              ElementsAre("language dp 2 -> 1"));
}

TEST(LayoutChangeTest, SeveralLayouts_AreJoinedFromTheFirstToTheLast) {
  const Plan whole = MustPlan(VisionBesideLanguage()), first = Without(whole, {3}),
             second = Without(first, {2, 6});
  EXPECT_THAT(ToWords(Joined(ChangesBetween(whole, first), ChangesBetween(first, second))),
              ElementsAre("vision dp 4 -> 2", "language tp 2 -> 1 in replica 1"));
  EXPECT_THAT(Joined(ChangesBetween(whole, first), ChangesBetween(first, whole)), IsEmpty());
}

TEST(LayoutChangeTest, ReplicaThatIsNarrowedAndThenDropped_IsNamedAsDropped) {
  const Plan whole = MustPlan(VisionBesideLanguage()), narrow = Without(whole, {6}),
             dropped = Without(narrow, {7});
  EXPECT_THAT(ToWords(Joined(ChangesBetween(whole, narrow), ChangesBetween(narrow, dropped))),
              ElementsAre("language dp 2 -> 1"));
}

}  // namespace
}  // namespace phalanx::plan

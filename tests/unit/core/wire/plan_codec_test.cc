#include "core/wire/plan_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/schedule/choice.h"
#include "core/wire/plan_json.h"
#include "tests/support/specs.h"
#include "tests/unit/core/wire/pictured.h"

namespace phalanx::wire {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::NoArchitecture;

v1::Plan OverTheWire(const v1::Plan& plan) {
  v1::Plan parsed;
  EXPECT_TRUE(parsed.ParseFromString(plan.SerializeAsString()));
  return parsed;
}

TEST(PlanCodecTest, MessageThatWasSent_PrintsAsThePlanThatItWasMadeOf) {
  for (const std::string& file : Examples()) {
    const job::JobSpec spec = MustReadExample(file);
    const auto plan = schedule::PlanJob(spec, plan::MakeCluster(3, spec.World()), Epoch{1});
    ASSERT_TRUE(plan.ok()) << file << ": " << plan.status();
    const v1::Plan message = ToProto(*plan, {.bubble = 0.25, .lower_bound = 0.2});
    EXPECT_EQ(PlanJson(OverTheWire(message)), PlanJson(message)) << file;
  }
}

TEST(PlanCodecTest, WhatIsNotKnown_IsAbsentAfterTheWireToo) {
  const plan::Plan plan = MustPlan(AJob()
                                       .Module("language", NoArchitecture(), {.pp = 2})
                                       .Schedule(job::ScheduleName::kZeroBubbleH1));
  const v1::Plan parsed = OverTheWire(ToProto(plan, {}));
  EXPECT_FALSE(parsed.replicas(0).has_units());
  EXPECT_FALSE(parsed.modules(0).stages(0).has_warmup());
  EXPECT_EQ(parsed.memory_size(), 0);
}

// Answers have a limit in bytes: what a rank shares with others is not told for each.
TEST(PlanCodecTest, MessageOfALargeWorld_IsAFractionOfItsJson) {
  const plan::Plan plan = MustPlan(
      AJob()
          .Module("vision", ClipVision(), {.tp = 2, .dp = 64})
          .Module("language", Llama({.layers = 16}), {.tp = 4, .dp = 64, .pp = 8, .offset = 128})
          .Edge("vision", "language", {.projector = 32})
          .Batch(64, 1),
      272, 8);
  const v1::Plan message = ToProto(plan, {});
  EXPECT_LT(4 * message.ByteSizeLong(), PlanJson(message).size());
}

}  // namespace
}  // namespace phalanx::wire

#include "core/wire/layout_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "core/job/schema.h"

namespace phalanx::wire {
namespace {

using ::testing::HasSubstr;

plan::Layout Under(job::ScheduleName schedule, job::StateHome home) {
  return {.derivation = 3,
          .schedule = {.name = schedule},
          .modules = {{.layers = {1},
                       .state_home = home,
                       .order = {2, 0, 1},
                       .admitted_homes = plan::HomeChoice{home, 3}}}};
}

TEST(LayoutCodecTest, EveryScheduleAndStateHome_ComesBack) {
  for (size_t schedule = 1; schedule < job::ScheduleNames().size(); ++schedule) {
    for (size_t home = 1; home < job::StateHomeNames().size(); ++home) {
      const plan::Layout layout =
          Under(static_cast<job::ScheduleName>(schedule), static_cast<job::StateHome>(home));
      v1::Layout message;
      ToProto(layout, &message);
      EXPECT_EQ(message.schedule(), job::ScheduleNames()[schedule]);
      EXPECT_EQ(message.modules(0).state_home(), job::StateHomeNames()[home]);
      const absl::StatusOr<plan::Layout> back = FromProto(message);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(*back, layout);
    }
  }
}

TEST(LayoutCodecTest, MessageFromBeforeAdmittedHomes_HasNone) {
  v1::Layout message;
  ToProto(Under(job::ScheduleName::k1F1B, job::StateHome::kHost), &message);
  message.mutable_modules(0)->clear_admitted_home();
  message.mutable_modules(0)->clear_admitted_copies();
  const absl::StatusOr<plan::Layout> layout = FromProto(message);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->modules[0].admitted_homes, std::nullopt);
}

TEST(LayoutCodecTest, FailureDomains_ComeBack_AndAMessageFromBeforeThemHasNone) {
  plan::Layout layout = Under(job::ScheduleName::k1F1B, job::StateHome::kMirror);
  layout.nodes = {{"a", {0, 1}, "rack-7"}, {"b", {0}}};
  v1::Layout message;
  ToProto(layout, &message);
  absl::StatusOr<plan::Layout> back = FromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, layout);
  message.mutable_placement()->mutable_nodes(0)->clear_domain();
  back = FromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->nodes[0], (plan::NodeDevices{"a", {0, 1}}));
}

TEST(LayoutCodecTest, TableOfProducts_ComesBack_AndAMessageFromBeforeItHasNone) {
  plan::Layout layout = Under(job::ScheduleName::k1F1B, job::StateHome::kMirror);
  layout.products = "h200-cublaslt-130100@0123";
  v1::Layout message;
  ToProto(layout, &message);
  EXPECT_EQ(FromProto(message)->products, layout.products);
  message.clear_products();
  EXPECT_EQ(FromProto(message)->products, "");
}

TEST(LayoutCodecTest, LoweredDegrees_ComeBack) {
  plan::Layout layout = Under(job::ScheduleName::k1F1B, job::StateHome::kHost);
  layout.modules[0].lowered = plan::LoweredGrid{
      .tp = 2, .dp = 1, .pp = 3, .layers = {2, 1, 1}, .ranks = {Rank{7}, Rank{4}, Rank{5}}};
  v1::Layout message;
  ToProto(layout, &message);
  const absl::StatusOr<plan::Layout> back = FromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, layout);
}

// A layout leaves nothing open.
TEST(LayoutCodecTest, NamesThatNoLayoutHas_AreRefused) {
  v1::Layout layout;
  ToProto(Under(job::ScheduleName::k1F1B, job::StateHome::kHost), &layout);
  for (const char* name : {"", "auto", "breadth_first"}) {
    v1::Layout changed = layout;
    changed.set_schedule(name);
    EXPECT_THAT(FromProto(changed).status().message(), HasSubstr("does not know"));
    changed = layout;
    changed.mutable_modules(0)->set_state_home(name);
    EXPECT_THAT(FromProto(changed).status().message(), HasSubstr("does not know"));
    if (name[0] == '\0') continue;  // it has the homes that it was admitted with
    changed = layout;
    changed.mutable_modules(0)->set_admitted_home(name);
    EXPECT_THAT(FromProto(changed).status().message(),
                HasSubstr("admitted_home is \"" + std::string(name) + "\", which this"));
  }
}

}  // namespace
}  // namespace phalanx::wire

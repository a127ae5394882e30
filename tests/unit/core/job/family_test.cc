#include "core/job/family.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/job/job_spec.h"

namespace phalanx::job {
namespace {

TEST(FamilyTest, Names_AreUniqueAndWrittenInLowerCase) {
  std::set<std::string> names;
  for (const FamilyTraits& family : kFamilies) {
    if (!family.known()) continue;
    EXPECT_TRUE(names.insert(std::string(family.name)).second) << family.name;
    EXPECT_EQ(family.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"),
              absl::string_view::npos)
        << family.name;
    EXPECT_FALSE(family.summary.empty()) << family.name;
  }
}

TEST(FamilyTest, Encoders_ReadItemsAndHaveNoLoss) {
  for (const FamilyTraits& family : kFamilies) {
    EXPECT_EQ(family.encoder(), family.images() || family.sounds()) << family.name;
    if (family.known()) {
      EXPECT_EQ(family.decoder(), family.head != HeadKind::kNone) << family.name;
    }
  }
}

TEST(FamilyTest, Names_OfTensors_FitWhatTheFamilyHas) {
  for (const FamilyTraits& family : kFamilies) {
    if (!family.known()) continue;
    EXPECT_EQ(family.names.gate.empty(), !family.gated()) << family.name;
    for (const absl::string_view name :
         {family.names.prefix, family.names.layers, family.names.norm1, family.names.attention,
          family.names.output, family.names.norm2, family.names.up, family.names.down}) {
      EXPECT_FALSE(name.empty()) << family.name;
    }
    if (family.decoder()) {
      EXPECT_FALSE(family.names.final_norm.empty()) << family.name;
    }
    if (!family.images()) continue;
    for (const float deviation : family.pixels.deviation) EXPECT_GT(deviation, 0) << family.name;
  }
}

TEST(FamilyTest, FamiliesWhere_ListsThoseThatAre) {
  constexpr FamilySet kDecoders =
      FamiliesWhere([](const FamilyTraits& family) { return family.decoder(); });
  EXPECT_EQ(kDecoders, SetOf(Family::kLlama) | SetOf(Family::kRegressor));
}

TEST(FamilyTest, RowsOfAnItem_FollowFromItsShape) {
  const Architecture vision{.family = Family::kClipVision, .image_size = 32, .patch_size = 8};
  const Architecture audio{.family = Family::kWhisper, .mel_bins = 80, .frames = 50};
  EXPECT_EQ(RowsOfItem(vision), 16);
  EXPECT_EQ(ExtraRowsOfItem(vision), 1);
  EXPECT_EQ(RowsOfItem(audio), 25);
  EXPECT_EQ(ExtraRowsOfItem(audio), 0);
  EXPECT_EQ(RowsOfItem({.family = Family::kLlama, .context = 40}), 0);
  EXPECT_EQ(RowsOfItem({}), 0);
  EXPECT_EQ(RowsOfItem({.family = Family::kClipVision}), 0);
}

}  // namespace
}  // namespace phalanx::job

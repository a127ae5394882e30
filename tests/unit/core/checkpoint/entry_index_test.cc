#include "core/checkpoint/entry_index.h"

#include <algorithm>
#include <vector>

#include "core/base/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::checkpoint {
namespace {

// A file of the rank with an entry for each rectangle of language/t#m.
PartHeader File(int32_t rank, const std::vector<Rectangle>& rectangles,
                Kind kind = Kind::kFirstMoment) {
  PartHeader file{.info = {.store = "s", .job = 1, .epoch = 1, .step = 1, .rank = rank}};
  for (const Rectangle& where : rectangles) {
    file.entries.push_back({.module = "language", .tensor = "t", .kind = kind, .where = where});
  }
  return file;
}

std::string Refusal(const std::vector<PartHeader>& files) {
  return std::string(EntryIndex::Create(files).status().message());
}

TEST(EntryIndexTest, Find_TellsWhoHasWhichPart) {
  const auto index = EntryIndex::Create(
      {File(0, {{0, 0, 4, 6}, {4, 0, 4, 3}}), File(1, {{4, 3, 4, 3}, {8, 0, 2, 6}})});
  ASSERT_TRUE(index.ok()) << index.status();
  const auto found = index->Find("language", "t", Kind::kFirstMoment, {3, 2, 3, 2});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 3u);
  EXPECT_EQ((*found)[0].part, (Rectangle{3, 2, 1, 2}));
  EXPECT_EQ((*found)[1].part, (Rectangle{4, 2, 2, 1}));
  EXPECT_EQ((*found)[2].part, (Rectangle{4, 3, 2, 1}));
  EXPECT_EQ((*found)[2].file, 1);
  EXPECT_EQ((*found)[2].entry, 0);
}

TEST(EntryIndexTest, Gap_IsNamedByItsRows) {
  const auto index =
      EntryIndex::Create({File(0, {{0, 0, 4, 6}, {4, 0, 4, 3}}), File(1, {{6, 3, 4, 3}})});
  ASSERT_TRUE(index.ok()) << index.status();
  const auto refusal = [&](const Rectangle& where, const char* tensor = "t") {
    return std::string(
        index->Find("language", tensor, Kind::kFirstMoment, where).status().message());
  };
  EXPECT_EQ(refusal({0, 0, 8, 6}), "language/t#m: no file has all of rows 4-5");
  EXPECT_EQ(refusal({5, 5, 1, 1}), "language/t#m: no file has all of row 5");
  EXPECT_EQ(refusal({6, 0, 9, 6}), "language/t#m: no file has all of rows 8-14");
  EXPECT_EQ(refusal({0, 0, 2, 2}, "u"), "language/u#m: no file has all of rows 0-1");
  EXPECT_TRUE(index->Find("language", "t", Kind::kFirstMoment, {6, 0, 2, 6}).ok());
}

TEST(EntryIndexTest, WhatStandsTwice_IsNamedWithBothFiles) {
  EXPECT_EQ(Refusal({File(1, {{0, 0, 8, 6}}), File(4, {{3, 5, 5, 1}})}),
            "language/t#m: rank-00001.safetensors and rank-00004.safetensors both have rows 3-7");
  EXPECT_EQ(Refusal({File(1, {{0, 0, 8, 3}, {0, 3, 8, 3}}), File(4, {{7, 2, 1, 1}})}),
            "language/t#m: rank-00001.safetensors and rank-00004.safetensors both have row 7");
  EXPECT_EQ(Refusal({File(1, {{0, 0, 8, 3}}), File(4, {{0, 0, 8, 3}}, Kind::kMaster)}), "");
}

// Of files that are to hold language/t alone, 8 x 6.
std::string Fault(const std::vector<PartHeader>& files, bool trains = true) {
  const ModelTensor tensor{
      .module = "language", .tensor = "t", .rows = 8, .cols = 6, .trains = trains};
  return std::string(EntryIndex::Create(files)->CheckWhole({tensor}).message());
}
// Master and moments of the rectangles.
std::vector<PartHeader> State(const std::vector<Rectangle>& rectangles) {
  return {File(0, rectangles, Kind::kMaster), File(1, rectangles),
          File(2, rectangles, Kind::kSecondMoment)};
}

TEST(EntryIndexTest, CheckWhole_WantsMasterAndMoments_OrWeights) {
  const std::vector<Rectangle> all = {{0, 0, 8, 6}};
  const std::vector<PartHeader> state = State(all);
  EXPECT_EQ(Fault(state), "");
  EXPECT_EQ(Fault({File(0, all, Kind::kWeight)}, /*trains=*/false), "");
  EXPECT_EQ(Fault({state[0], state[2]}), "language/t#m: no file has all of rows 0-7");
  EXPECT_EQ(Fault({state[0], File(1, {{0, 0, 7, 6}}), state[2]}),
            "language/t#m: no file has all of row 7");
  EXPECT_EQ(Fault({state[0], state[1], state[2], File(3, all, Kind::kWeight)}),
            "language/t: trains in the model, so it may have no #weight");
  EXPECT_EQ(Fault(state, /*trains=*/false),
            "language/t: is frozen in the model, so it may have no #master");
  EXPECT_EQ(Fault({File(0, all, Kind::kWeight)}),
            "language/t: trains in the model, so it may have no #weight");
}

TEST(EntryIndexTest, CheckWhole_WantsTheSizesOfTheModel) {
  EXPECT_EQ(Fault(State({{0, 0, 9, 6}})),
            "language/t: the model has [8, 6], the files have [9, 6]");
  EXPECT_EQ(Fault(State({{0, 0, 8, 7}})),
            "language/t: the model has [8, 6], the files have [8, 7]");
  EXPECT_EQ(Fault(State({{0, 0, 6, 6}})),
            "language/t: the model has [8, 6], the files have [6, 6]");
  EXPECT_EQ(Fault(State({{0, 0, 8, 5}})),
            "language/t: the model has [8, 6], the files have [8, 5]");
}

TEST(EntryIndexTest, CheckWhole_WantsTheTensorsOfTheModel) {
  EXPECT_EQ(Fault({}), "language/t: the model has [8, 6], the files have none of it");
  std::vector<PartHeader> files = State({{0, 0, 8, 6}});
  files.push_back(File(3, {{2, 1, 3, 3}}));
  files.back().entries[0].tensor = "u";
  EXPECT_EQ(Fault(files), "language/u: the model has no such tensor, the files have [5, 4]");
  const ModelTensor optional{
      .module = "language", .tensor = "t", .rows = 8, .cols = 6, .required = false};
  EXPECT_TRUE(EntryIndex::Create({})->CheckWhole({optional}).ok());
}

// Against looking at every pair and every element.
TEST(EntryIndexTest, RandomRectangles_AgreeWithTheNaiveAnswer) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    const auto draw = [&](int64_t size) {
      Rectangle where;
      where.row = static_cast<int64_t>(prng.Below(8));
      where.col = static_cast<int64_t>(prng.Below(8));
      where.rows = 1 + static_cast<int64_t>(prng.Below(static_cast<uint64_t>(size)));
      where.cols = 1 + static_cast<int64_t>(prng.Below(static_cast<uint64_t>(size)));
      return where;
    };
    std::vector<Rectangle> rectangles;
    bool overlap = false;
    for (uint64_t i = 0; i < 1 + seed % 12; ++i) {
      const Rectangle next = draw(4);
      const bool hits =
          std::any_of(rectangles.begin(), rectangles.end(),
                      [&](const Rectangle& other) { return !Intersection(next, other).empty(); });
      if (hits && seed % 3 != 0) continue;
      overlap |= hits;
      rectangles.push_back(next);
    }
    const auto index = EntryIndex::Create({File(0, rectangles)});
    ASSERT_EQ(index.ok(), !overlap);
    if (overlap) continue;
    const Rectangle wanted = draw(6);
    int64_t held = 0;
    for (const Rectangle& where : rectangles) held += Intersection(where, wanted).elements();
    EXPECT_EQ(index->Find("language", "t", Kind::kFirstMoment, wanted).ok(),
              held == wanted.elements());
  }
}

}  // namespace
}  // namespace phalanx::checkpoint

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

TEST(EntryIndexTest, CheckWhole_MissesWhatAnotherKindHas) {
  const std::vector<Rectangle> all = {{0, 0, 8, 6}};
  const auto whole = [&](const std::vector<PartHeader>& files) {
    return std::string(EntryIndex::Create(files)->CheckWhole().message());
  };
  const PartHeader master = File(0, all, Kind::kMaster), second = File(0, all, Kind::kSecondMoment);
  EXPECT_EQ(whole({master, File(1, all), second}), "");
  EXPECT_EQ(whole({File(0, all, Kind::kWeight)}), "");
  EXPECT_EQ(whole({master, second}), "language/t#m: no file has all of rows 0-7");
  EXPECT_EQ(whole({master, File(1, {{0, 0, 7, 6}}), second}),
            "language/t#m: no file has all of row 7");
  EXPECT_EQ(whole({master, File(1, all), second, File(2, all, Kind::kWeight)}),
            "language/t: has weights, so it may have no #master");
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

#include "core/checkpoint/local_entries.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// One matrix [4, 6] at offset 64, of two tensors: rows 2-3 of "a" above rows 0-1 of "b". The rank
// leads "b" alone.
plan::StageParameters AStage() {
  plan::StageParameters stage;
  stage.logical = {{.name = "a", .rows = 8, .cols = 6}, {.name = "b", .rows = 2, .cols = 6}};
  plan::LocalMatrix matrix;
  matrix.rows = 4;
  matrix.cols = 6;
  matrix.offset = 64;
  matrix.pieces = {{.logical = 0, .logical_row = 2, .rows = 2, .primary = false},
                   {.logical = 1, .local_row = 2, .rows = 2}};
  stage.matrices = {matrix};
  stage.elements = stage.trained_extent = 128;
  return stage;
}

TEST(EntriesOfTest, RunThatCutsRows_GivesThreeRectangles) {
  const auto entries = EntriesOf(AStage(), "language", {{64 + 4, 7}}, Copies::kAll);
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].entry.where, (Rectangle{2, 4, 1, 2}));
  EXPECT_EQ(entries[1].entry.where, (Rectangle{3, 0, 1, 5}));
  const auto three = EntriesOf(AStage(), "language", {{64 + 4, 10}}, Copies::kAll);
  ASSERT_THAT(three, SizeIs(3));
  EXPECT_EQ(three[1].entry.where, (Rectangle{3, 0, 1, 6}));
  EXPECT_EQ(three[1].entry.module, "language");
  EXPECT_EQ(three[1].entry.tensor, "a");
  EXPECT_EQ(three[1].position, 2);
  EXPECT_EQ(three[2].entry.tensor, "b");
  EXPECT_EQ(three[2].entry.where, (Rectangle{0, 0, 1, 2}));
  EXPECT_EQ(three[2].position, 8);
}

TEST(EntriesOfTest, Positions_CountOverTheRuns) {
  const auto entries = EntriesOf(AStage(), "language", {{10, 20}, {70, 6}, {82, 6}}, Copies::kAll);
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].position, 20);
  EXPECT_EQ(entries[0].entry.where, (Rectangle{3, 0, 1, 6}));
  EXPECT_EQ(entries[1].position, 26);
  EXPECT_EQ(entries[1].entry.where, (Rectangle{1, 0, 1, 6}));
}

TEST(EntriesOfTest, PaddingAndWhatOthersLead_AreLeftOut) {
  EXPECT_THAT(EntriesOf(AStage(), "language", {{0, 64}, {88, 40}}, Copies::kAll), IsEmpty());
  const auto led = EntriesOf(AStage(), "language", {{0, 128}}, Copies::kLed);
  ASSERT_THAT(led, SizeIs(1));
  EXPECT_EQ(led[0].entry.where, (Rectangle{0, 0, 2, 6}));
  EXPECT_EQ(led[0].stride, 6);
  EXPECT_EQ(led[0].position, 64 + 12);
}

// Rows 2-3 of the stored matrix are columns 5-6 of the tensor.
TEST(EntriesOfTest, TransposedMatrix_GivesTransposedEntries) {
  plan::StageParameters stage;
  stage.logical = {{.name = "o", .rows = 3, .cols = 8}};
  plan::LocalMatrix matrix;
  matrix.rows = 4;
  matrix.cols = 3;
  matrix.transposed = true;
  matrix.pieces = {{.logical_row = 5, .local_row = 2, .rows = 2}};
  stage.matrices = {matrix};
  const auto entries = EntriesOf(stage, "language", {{7, 5}}, Copies::kLed);
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].entry.where, (Rectangle{1, 5, 2, 1}));
  EXPECT_EQ(entries[1].entry.where, (Rectangle{0, 6, 3, 1}));
  EXPECT_EQ(entries[1].position, 2);
  EXPECT_TRUE(entries[1].entry.transposed);
  // Down the column of the tensor, one after another.
  const Steps steps = StepsIn(entries[1], {1, 6, 2, 1});
  EXPECT_EQ(steps.first, 3);
  EXPECT_EQ(steps.row, 1);
}

TEST(EntriesOfTest, LargeMatrix_IsCut) {
  plan::StageParameters stage;
  stage.logical = {{.name = "a", .rows = 3, .cols = kEntryElementsMax}};
  plan::LocalMatrix matrix;
  matrix.rows = 3;
  matrix.cols = kEntryElementsMax;
  matrix.pieces = {{.rows = 3}};
  stage.matrices = {matrix};
  const auto entries = EntriesOf(stage, "language", {{5, 3 * kEntryElementsMax - 5}}, Copies::kLed);
  int64_t position = 0;
  for (const LocalEntry& one : entries) {
    EXPECT_LE(one.entry.where.elements(), kEntryElementsMax);
    EXPECT_EQ(one.position, position);
    position += one.entry.where.elements();
  }
  EXPECT_EQ(position, 3 * kEntryElementsMax - 5);
}

TEST(StepsTest, TransposedEntry_LiesColumnByColumn) {
  Entry entry{.where = {10, 20, 3, 4}, .transposed = true};
  const Steps steps = StepsIn(entry, {11, 22, 2, 2});
  EXPECT_EQ(steps.first, 2 * 3 + 1);
  EXPECT_EQ(steps.row, 1);
  EXPECT_EQ(steps.col, 3);
  entry.transposed = false;
  EXPECT_EQ(StepsIn(entry, {11, 22, 2, 2}).first, 1 * 4 + 2);
  const Steps local = StepsIn(LocalEntry{entry, 100, 9}, {11, 22, 2, 2});
  EXPECT_EQ(local.first, 100 + 9 + 2);
  EXPECT_EQ(local.row, 9);
  EXPECT_EQ(local.col, 1);
}

}  // namespace
}  // namespace phalanx::checkpoint

// From text and a count of images to a sequence: placement, cutting, what counts, what is corrupt.
#include "worker/data/sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace phalanx::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 1;
constexpr int32_t R = RowToken(0);
constexpr int32_t S = RowToken(1);

// A word is one token: its first letter.
class WordTokenizer final : public Tokenizer {
 public:
  std::string Decode(absl::Span<const int32_t>) const override { return ""; }
  std::vector<int32_t> Encode(absl::string_view text) const override {
    std::vector<int32_t> ids;
    for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty()))
      ids.push_back(word[0]);
    return ids;
  }
  int32_t end_token() const override { return kEnd; }
  int32_t size() const override { return 256; }
};

Encoder Images(int64_t rows) { return {.kind = ItemKind::kImage, .rows = rows}; }
Encoder Sounds(int64_t rows) { return {.kind = ItemKind::kSound, .rows = rows}; }

Sequence MakeOf(absl::string_view text, const std::vector<ItemKind>& items, const DataSetSpec& spec,
                int64_t target_rows = 0, const std::string& fault = "") {
  const std::vector<ItemRows> rows = RowsOfItems(items, spec);
  return MakeSequence(text, {items, rows, target_rows, fault}, spec, WordTokenizer());
}
Sequence Make(absl::string_view text, int32_t images,
              const DataSetSpec& spec = {.encoders = {Images(2)}, .context = 10},
              const std::string& fault = "") {
  const std::vector<ItemKind> items(static_cast<size_t>(images), ItemKind::kImage);
  return MakeOf(text, items, spec, 0, fault);
}

constexpr ItemKind kImage = ItemKind::kImage, kSound = ItemKind::kSound;
Sequence MakeOf(absl::string_view text, const std::vector<ItemKind>& items) {
  return MakeOf(text, items, {.encoders = {Images(2), Sounds(3)}});
}

TEST(SequenceTest, Marks_SayWhereItemsGo) {
  const Sequence sequence = Make("a <image> b <image>c d", 2);
  EXPECT_THAT(sequence.tokens, ElementsAre('a', R, R, 'b', R, R, 'c', 'd', kEnd));
  EXPECT_EQ(sequence.shape, (SampleShape{.images = 2, .positions = 8, .counted = 3}));
}

TEST(SequenceTest, WithoutMarks_ItemsGoFirst) {
  EXPECT_THAT(Make("a b", 1).tokens, ElementsAre(R, R, 'a', 'b', kEnd));
}

TEST(SequenceTest, TextOnly_CountsAllButTheFirstToken) {
  const Sequence sequence = Make("a b c", 0);
  EXPECT_THAT(sequence.tokens, ElementsAre('a', 'b', 'c', kEnd));
  EXPECT_EQ(sequence.shape, (SampleShape{.images = 0, .positions = 3, .counted = 3}));
}

TEST(SequenceTest, LastItemAtTheEnd_CountsTheEndTokenAlone) {
  EXPECT_EQ(Make("a b <image>", 1).shape, (SampleShape{.images = 1, .positions = 4, .counted = 1}));
}

TEST(SequenceTest, EmptyText_HasTwoEndTokens) {
  const Sequence sequence = Make("", 0);
  EXPECT_THAT(sequence.tokens, ElementsAre(kEnd, kEnd));
  EXPECT_EQ(sequence.shape, (SampleShape{.images = 0, .positions = 1, .counted = 1}));
}

TEST(SequenceTest, ByteOrderMarkAndLineEnds_AreNoText) {
  EXPECT_THAT(Make("\xEF\xBB\xBF"
                   "a b\r\n",
                   0)
                  .tokens,
              ElementsAre('a', 'b', kEnd));
}

TEST(SequenceTest, TooLong_TextIsCutFromItsEnd) {
  const Sequence sequence = Make("<image>a b c d e f g h i j", 1);
  EXPECT_THAT(sequence.tokens, ElementsAre(R, R, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', kEnd));
  EXPECT_EQ(sequence.shape, (SampleShape{.images = 1, .positions = 10, .counted = 9}));
}

TEST(SequenceTest, TooLong_ItemsAfterTheTextStay) {
  const Sequence sequence =
      Make("a b c d <image> e <image> f", 2, {.encoders = {Images(4)}, .context = 10});
  EXPECT_THAT(sequence.tokens, ElementsAre('a', 'b', R, R, R, R, R, R, R, R, kEnd));
  EXPECT_EQ(sequence.shape.counted, 1);
}

TEST(SequenceTest, ItemsThatFillTheContext_LeaveTheEndToken) {
  const Sequence sequence = Make("a", 5);
  EXPECT_EQ(sequence.shape, (SampleShape{.images = 5, .positions = 10, .counted = 1}));
}

// Corrupt samples are their text alone and count nothing.
void ExpectCorrupt(const Sequence& sequence, absl::string_view reason) {
  EXPECT_TRUE(sequence.shape.corrupt);
  EXPECT_THAT(sequence.corrupt_reason, HasSubstr(std::string(reason)));
  EXPECT_EQ(sequence.shape.images, 0);
  EXPECT_EQ(sequence.shape.sounds, 0);
  EXPECT_EQ(sequence.shape.counted, 0);
  EXPECT_THAT(sequence.tokens, ::testing::Each(::testing::Ge(0)));
  EXPECT_EQ(sequence.shape.positions, static_cast<int32_t>(sequence.tokens.size()) - 1);
}

TEST(SequenceTest, MarksThatDoNotMatch_AreCorrupt) {
  ExpectCorrupt(Make("<image> a <image>", 1), "has 2 <image> marks and 1 image");
  ExpectCorrupt(Make("<image> a", 0), "has 1 <image> mark and 0 images");
}

TEST(SequenceTest, TooManyItems_AreCorrupt) {
  ExpectCorrupt(Make("a", 9, {.encoders = {Images(1)}, .context = 100}),
                "has 9 images; must have at most items_max (8)");
  EXPECT_FALSE(Make("a", 8, {.encoders = {Images(1)}, .context = 100}).shape.corrupt);
}

TEST(SequenceTest, ItemsBeyondTheContext_AreCorrupt) {
  ExpectCorrupt(Make("a", 6), "has 6 images, 12 rows together; must fit the context (10)");
}

TEST(SequenceTest, MarksOfBothKinds_SayWhereEachGoes) {
  const Sequence sequence = MakeOf("a <audio> b <image> c", {kImage, kSound});
  EXPECT_THAT(sequence.tokens, ElementsAre('a', S, S, S, 'b', R, R, 'c', kEnd));
  EXPECT_EQ(sequence.shape, (SampleShape{.images = 1, .sounds = 1, .positions = 8, .counted = 2}));
}

TEST(SequenceTest, KindWithoutMarks_GoesFirst) {
  EXPECT_THAT(MakeOf("a <audio> b", {kSound, kImage}).tokens,
              ElementsAre(R, R, 'a', S, S, S, 'b', kEnd));
  EXPECT_THAT(MakeOf("a <image> b", {kImage, kSound}).tokens,
              ElementsAre(S, S, S, 'a', R, R, 'b', kEnd));
}

TEST(SequenceTest, WithoutAnyMark_ItemsOfBothKindsGoFirstByNumber) {
  EXPECT_THAT(MakeOf("a", {kSound, kImage, kSound}).tokens,
              ElementsAre(S, S, S, R, R, S, S, S, 'a', kEnd));
}

TEST(SequenceTest, SoundMarksThatDoNotMatch_AreCorrupt) {
  ExpectCorrupt(MakeOf("<audio> a", {kImage}), "has 1 <audio> mark and 0 sounds");
  ExpectCorrupt(MakeOf("<audio> a", {kSound, kSound}), "has 1 <audio> mark and 2 sounds");
}

TEST(SequenceTest, ItemsOfBothKinds_AreBoundTogether) {
  DataSetSpec spec{.items_max = 3, .encoders = {Images(1), Sounds(1)}};
  EXPECT_FALSE(MakeOf("a", {kImage, kSound, kSound}, spec).shape.corrupt);
  ExpectCorrupt(MakeOf("a", {kImage, kSound, kSound, kImage}, spec),
                "has 2 images and 2 sounds; must have at most items_max (3)");
  spec.context = 2;
  ExpectCorrupt(MakeOf("a", {kImage, kSound, kSound}, spec),
                "has 1 image and 2 sounds, 3 rows together; must fit the context (2)");
}

TEST(SequenceTest, Target_HasAtMostAsManyRowsAsPositions) {
  const DataSetSpec spec{.encoders = {Images(2)}, .targets = true};
  const Sequence fits = MakeOf("a b", {kImage}, spec, 4);
  EXPECT_EQ(fits.shape, (SampleShape{.images = 1, .positions = 4, .counted = 3, .target_rows = 4}));
  const Sequence larger = MakeOf("a b", {kImage}, spec, 5);
  ExpectCorrupt(larger, "has a target of 5 rows; must have at most as many as input positions (4)");
  EXPECT_EQ(larger.shape.target_rows, 0);
}

TEST(SequenceTest, WithoutAudio_SoundMarksAreLeftOut) {
  const Sequence sequence = MakeOf("<audio> a <image> b", {kImage}, {.encoders = {Images(2)}});
  EXPECT_THAT(sequence.tokens, ElementsAre('a', R, R, 'b', kEnd));
  EXPECT_FALSE(sequence.shape.corrupt);
}

TEST(SequenceTest, KnownFault_IsKept) {
  ExpectCorrupt(Make("a b", 1, {.encoders = {Images(2)}}, "lacks image 0"), "lacks image 0");
}

TEST(SequenceTest, WithoutVision_ImagesAndMarksAreLeftOut) {
  const Sequence sequence = Make("a <image> b", 0, {.context = 10});
  EXPECT_THAT(sequence.tokens, ElementsAre('a', 'b', kEnd));
  EXPECT_EQ(sequence.shape, (SampleShape{.images = 0, .positions = 2, .counted = 2}));
  EXPECT_FALSE(Make("<image> <image> a", 0, {.context = 0}).shape.corrupt);
}

TEST(SequenceTest, EncodersOfOneKind_EachMakeRowsOfAnItem) {
  const DataSetSpec spec{.encoders = {Images(2), Sounds(3), Images(1)}};
  constexpr int32_t C = RowToken(2);
  const Sequence sequence = MakeOf("a <image> b <image>", {kImage, kSound, kImage}, spec);
  EXPECT_THAT(sequence.tokens, ElementsAre(S, S, S, 'a', R, R, C, 'b', R, R, C, kEnd));
  EXPECT_THAT(sequence.rows, ElementsAre(ItemRows{0, 2}, ItemRows{2, 1}, ItemRows{1, 3},
                                         ItemRows{0, 2}, ItemRows{2, 1}));
}

TEST(SequenceTest, RowsThatDifferFromItemToItem_StandWhereTheirItemGoes) {
  const DataSetSpec spec{.encoders = {Images(2), Sounds(3)}, .context = 12};
  const std::vector<ItemKind> items = {kImage, kSound, kImage};
  const std::vector<ItemRows> rows = {{0, 1}, {1, 2}, {0, 3}};
  const Sequence sequence =
      MakeSequence("a <image> b <image> c", {items, rows, 0, ""}, spec, WordTokenizer());
  EXPECT_THAT(sequence.tokens, ElementsAre(S, S, 'a', R, 'b', R, R, R, 'c', kEnd));
  EXPECT_EQ(sequence.rows, rows);
  const std::vector<ItemRows> many = {{0, 1}, {1, 2}, {0, 10}};
  const Sequence beyond = MakeSequence("a", {items, many, 0, ""}, spec, WordTokenizer());
  ExpectCorrupt(beyond, "has 2 images and 1 sound, 13 rows together; must fit the context (12)");
  EXPECT_TRUE(beyond.rows.empty());
}

}  // namespace
}  // namespace phalanx::data

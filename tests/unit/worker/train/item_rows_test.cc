// Rows of items that differ from item to item: what lanes and links make of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/plan/samples.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/train/all_places.h"
#include "worker/train/batches.h"

namespace phalanx::train {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using ::testing::Each;

// Samples without text worth mentioning: only shapes.
class ShapedSource final : public SampleSource {
 public:
  explicit ShapedSource(std::vector<std::vector<data::ItemRows>> rows) : rows_(std::move(rows)) {}
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  data::SampleShape shape(int64_t sample) const override {
    data::SampleShape shape{.positions = 3};
    for (const data::ItemRows& item : rows_[static_cast<size_t>(sample)]) {
      shape.positions += item.rows;
    }
    return shape;
  }
  absl::Span<const data::ItemRows> rows(int64_t sample) const override {
    return rows_[static_cast<size_t>(sample)];
  }
  std::string NameOf(int64_t) const override { return ""; }
  void Announce(absl::Span<const int64_t>) override {}
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t) override {
    return absl::UnimplementedError("has only shapes");
  }

 private:
  const std::vector<std::vector<data::ItemRows>> rows_;
};

constexpr int32_t kFirst = 0, kSecond = 1, kLanguage = 2;  // modules; encoders have these numbers

// Two encoders of images, on two and three lanes, feed a language module on two, tensor width 3.
plan::Plan TwoEncoders() {
  const job::JobSpec spec = AJob()
                                .Module("first", ClipVision(), {.dp = 2})
                                .Module("second", ClipVision(), {.dp = 3})
                                .Module("language", Llama(), {.tp = 3, .dp = 2})
                                .Edge("first", "language")
                                .Edge("second", "language")
                                .Batch(7, 4)
                                .Build();
  return *plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
}

class ItemRowsTest : public testing::Test {
 protected:
  const plan::Plan plan_ = TwoEncoders();
  ShapedSource source_{
      {{{kFirst, 4}, {kSecond, 9}, {kFirst, 1}, {kSecond, 2}},
       {},
       {{kFirst, 7}, {kSecond, 5}},
       {{kFirst, 2}, {kSecond, 3}, {kFirst, 6}, {kSecond, 8}, {kFirst, 3}, {kSecond, 1}},
       {},
       {{kFirst, 5}, {kSecond, 11}},
       {{kFirst, 8}, {kSecond, 4}}}};
  const Batches batches_{plan_, AllPlaces(plan_), source_, at::kCPU, at::kFloat, 1};
  const Microbatch all_ = batches_.OfSamples({0, 1, 2, 3, 4, 5, 6});
};

TEST_F(ItemRowsTest, Rows_ThatDifferFromItemToItem_AreAddedUp) {
  EXPECT_EQ(batches_.RowsOf(kFirst, all_, {0, 1}), 5);
  EXPECT_EQ(batches_.RowsOf(kSecond, all_, {0, 3}), 16);
  EXPECT_EQ(batches_.RowsOf(kFirst, all_, {3, 4}), 24);
  EXPECT_EQ(batches_.RowsOf(kSecond, all_, {4, 1}), 0);
  EXPECT_EQ(batches_.ItemsOf(kFirst, all_, {0, 7}), 8);
  // In the layers each item has a class token too.
  EXPECT_EQ(batches_.LayerRowsOf(kFirst, all_, {0, 1}), 7);
  EXPECT_EQ(batches_.LayerRowsOf(kSecond, all_, {1, 1}), 0);
  // A decoder has a row for each position.
  EXPECT_EQ(batches_.RowsOf(kLanguage, all_, {0, 2}), 16 + 3 + 3);
  EXPECT_EQ(batches_.ItemsOf(kLanguage, all_, {0, 7}), 0);
}

TEST_F(ItemRowsTest, Links_CarryEveryRowOnce_WhateverRowsItemsHave) {
  for (int32_t link = 0; link < static_cast<int32_t>(plan_.links.size()); ++link) {
    const int32_t from = plan_.links[static_cast<size_t>(link)].from.module;
    const int64_t total = batches_.RowsOf(from, all_, {0, 7});
    std::vector<int> carried(static_cast<size_t>(total), 0);
    for (const plan::LinkMessage& message :
         plan::LinkMessages(plan_, link, plan::DealMicrobatch(plan_, 7))) {
      const int64_t before = batches_.RowsOf(from, all_, {0, message.first});
      const int64_t rows = batches_.RowsOf(from, all_, {message.first, message.count});
      const plan::UnitRange slice = plan::RowsOfMessage(message, rows);
      for (int64_t row = slice.first; row < slice.end(); ++row) {
        ++carried[static_cast<size_t>(before + row)];
      }
    }
    EXPECT_THAT(carried, Each(1)) << "link " << link;
  }
}

}  // namespace
}  // namespace phalanx::train

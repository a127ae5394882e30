#include "worker/train/items_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/train/batches.h"

namespace phalanx::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Lane = ItemsAhead::Lane;

// Samples of images of 2 x 2 for module 0, and of sounds of 3 bins and 4 frames for module 2.
class Source final : public SampleSource {
 public:
  explicit Source(std::shared_ptr<data::ItemMemory> memory = nullptr) {
    at::manual_seed(5);
    for (int64_t sample = 0; sample < 8; ++sample) {
      auto made = std::make_shared<data::Sample>();
      made->encoders.resize(2);
      for (data::Sample::Items& items : made->encoders) {
        items.values.resize(static_cast<size_t>(sample % 3));
        for (std::vector<float>& values : items.values) {
          const at::Tensor random = at::randn({12});
          values.assign(random.const_data_ptr<float>(), random.const_data_ptr<float>() + 12);
        }
      }
      plain_.push_back(made->encoders);
      for (data::Sample::Items& items : made->encoders) {
        if (memory == nullptr) continue;
        items.stored_type = memory->type();
        for (std::vector<float>& values : items.values) {
          items.stored.push_back(memory->Store(values));
          if (items.stored.back() != nullptr) values.clear();
        }
      }
      samples_.push_back(std::move(made));
    }
  }
  int64_t size() const override { return 8; }
  data::SampleShape shape(int64_t) const override { return {}; }
  absl::Span<const data::ItemRows> rows(int64_t) const override { return {}; }
  std::string NameOf(int64_t sample) const override { return absl::StrCat("sample ", sample); }
  void Announce(absl::Span<const int64_t>) override {}
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) override {
    ++takes[sample];
    if (sample == broken) return absl::UnavailableError("broken");
    return samples_.at(static_cast<size_t>(sample));
  }
  bool IsReady(int64_t sample) const override { return !undecoded.contains(sample); }

  // Of an encoder, the items of the samples one after the other.
  at::Tensor ItemsOf(size_t encoder, const std::vector<int64_t>& samples) const {
    std::vector<at::Tensor> items;
    for (const int64_t sample : samples) {
      for (const std::vector<float>& values :
           plain_.at(static_cast<size_t>(sample))[encoder].values)
        items.push_back(at::tensor(values).view(encoder == 0 ? at::IntArrayRef({3, 2, 2})
                                                             : at::IntArrayRef({3, 4})));
    }
    return at::stack(items);
  }
  data::Sample& Of(int64_t sample) { return *samples_.at(static_cast<size_t>(sample)); }

  std::map<int64_t, int> takes;
  std::set<int64_t> undecoded;
  int64_t broken = -1;

 private:
  std::vector<std::shared_ptr<data::Sample>> samples_;
  std::vector<std::vector<data::Sample::Items>> plain_;
};

data::ItemShapes SmallItemShapes() {
  data::ItemShapes shapes;
  shapes.encoders = {
      {.module = 0, .kind = data::ItemKind::kImage, .rows = 1, .image_size = 2},
      {.module = 2, .kind = data::ItemKind::kSound, .rows = 1, .mel_bins = 3, .frames = 4}};
  return shapes;
}

Lane LaneOf(int32_t module, const std::vector<int64_t>& samples) {
  Lane lane{.module = module, .samples = samples, .items = {}};
  for (const int64_t sample : samples) lane.items.push_back(sample % 3);
  return lane;
}

struct Rig {
  explicit Rig(at::ScalarType compute = at::kFloat,
               std::shared_ptr<data::ItemMemory> memory = nullptr)
      : source(std::move(memory)), ahead(shapes, source, at::kCPU, compute) {}

  ItemsAhead::Items TakeOrDie(const Lane& lane) {
    absl::StatusOr<ItemsAhead::Items> taken = ahead.Take(lane);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? *std::move(taken) : ItemsAhead::Items();
  }

  const data::ItemShapes shapes = SmallItemShapes();
  Source source;
  ItemsAhead ahead;
};

TEST(ItemsAheadTest, Items_AreThoseOfTheLaneInItsOrder) {
  Rig rig;
  const ItemsAhead::Items images = rig.TakeOrDie(LaneOf(0, {5, 3, 1}));
  EXPECT_TRUE(at::equal(images.values, rig.source.ItemsOf(0, {5, 3, 1})));
  EXPECT_THAT(images.valid, ElementsAre(1, 1, 1));
  EXPECT_THAT(images.corrupt, IsEmpty());
  EXPECT_EQ(rig.source.takes[3], 0) << "it has no items";
  const ItemsAhead::Items sounds = rig.TakeOrDie(LaneOf(2, {2}));
  EXPECT_TRUE(at::equal(sounds.values, rig.source.ItemsOf(1, {2})));
  EXPECT_FALSE(rig.TakeOrDie(LaneOf(0, {0, 6})).values.defined());
}

TEST(ItemsAheadTest, NextLaneOfEachModule_IsFetchedAndNotTakenAgain) {
  Rig rig;
  const Lane first = LaneOf(0, {1, 2}), second = LaneOf(0, {4, 5}), sounds = LaneOf(2, {7});
  rig.ahead.Expect({first, sounds, second});
  EXPECT_FALSE(rig.ahead.HasFetched(first));
  rig.ahead.Fetch();
  rig.ahead.Fetch();
  EXPECT_TRUE(rig.ahead.HasFetched(first));
  EXPECT_TRUE(rig.ahead.HasFetched(sounds));
  EXPECT_FALSE(rig.ahead.HasFetched(second));
  EXPECT_EQ(rig.source.takes, (std::map<int64_t, int>{{1, 1}, {2, 1}, {7, 1}}));
  EXPECT_TRUE(at::equal(rig.TakeOrDie(first).values, rig.source.ItemsOf(0, {1, 2})));
  rig.ahead.Fetch();
  EXPECT_TRUE(rig.ahead.HasFetched(second));
  EXPECT_TRUE(at::equal(rig.TakeOrDie(second).values, rig.source.ItemsOf(0, {4, 5})));
  EXPECT_TRUE(at::equal(rig.TakeOrDie(sounds).values, rig.source.ItemsOf(1, {7})));
  rig.ahead.Fetch();
  for (const auto& [sample, takes] : rig.source.takes) EXPECT_EQ(takes, 1) << sample;
}

TEST(ItemsAheadTest, LaneThatIsNotDecoded_IsNotFetched) {
  Rig rig;
  const Lane lane = LaneOf(0, {1, 3, 2});
  rig.source.undecoded = {2, 3};
  rig.ahead.Expect({lane});
  rig.ahead.Fetch();
  EXPECT_THAT(rig.source.takes, IsEmpty());
  rig.source.undecoded = {3};  // it has nothing to decode
  rig.ahead.Fetch();
  EXPECT_TRUE(rig.ahead.HasFetched(lane));
}

TEST(ItemsAheadTest, Expectations_KeepWhatIsFetchedWhereItComesNext) {
  Rig rig;
  const Lane lane = LaneOf(0, {1, 2}), other = LaneOf(0, {4});
  rig.ahead.Expect({lane, other});
  rig.ahead.Fetch();
  rig.ahead.Expect({lane});
  EXPECT_TRUE(rig.ahead.HasFetched(lane));
  rig.ahead.Expect({other, lane});
  EXPECT_FALSE(rig.ahead.HasFetched(lane));
  EXPECT_FALSE(rig.ahead.HasFetched(other));
  rig.ahead.Fetch();
  // Whoever takes another one than was expected has it all the same.
  EXPECT_TRUE(at::equal(rig.TakeOrDie(lane).values, rig.source.ItemsOf(0, {1, 2})));
  EXPECT_TRUE(rig.ahead.HasFetched(other));
  EXPECT_TRUE(at::equal(rig.TakeOrDie(other).values, rig.source.ItemsOf(0, {4})));
}

// As where only some microbatches of a step are run before it.
TEST(ItemsAheadTest, LanesThatArePassedOver_AreNotFetchedBeforeThoseToCome) {
  Rig rig;
  const Lane first = LaneOf(0, {1}), passed = LaneOf(0, {2}), third = LaneOf(0, {4}),
             last = LaneOf(0, {5});
  rig.ahead.Expect({first, passed, third, last});
  rig.TakeOrDie(first);
  rig.TakeOrDie(third);
  rig.ahead.Fetch();
  EXPECT_TRUE(rig.ahead.HasFetched(last));
  EXPECT_EQ(rig.source.takes[2], 0);
  EXPECT_EQ(rig.source.takes[4], 1) << "what was taken is not fetched after that";
  // Whoever takes it yet, or again, has it, and leaves alone what is ahead.
  EXPECT_TRUE(at::equal(rig.TakeOrDie(passed).values, rig.source.ItemsOf(0, {2})));
  EXPECT_TRUE(at::equal(rig.TakeOrDie(first).values, rig.source.ItemsOf(0, {1})));
  EXPECT_TRUE(rig.ahead.HasFetched(last));
}

TEST(ItemsAheadTest, FetchedLaneThatIsPassedOver_StaysAloneUntilItIsTaken) {
  Rig rig;
  const Lane passed = LaneOf(0, {1}), second = LaneOf(0, {2}), third = LaneOf(0, {4});
  rig.ahead.Expect({passed, second, third});
  rig.ahead.Fetch();
  rig.TakeOrDie(second);
  rig.ahead.Fetch();
  EXPECT_EQ(rig.source.takes, (std::map<int64_t, int>{{1, 1}, {2, 1}})) << "one is ahead at most";
  EXPECT_TRUE(at::equal(rig.TakeOrDie(passed).values, rig.source.ItemsOf(0, {1})));
  EXPECT_EQ(rig.source.takes[1], 1);
  rig.ahead.Fetch();
  EXPECT_TRUE(rig.ahead.HasFetched(third));
}

// As LibTorch rounds, whatever of it was decoded where.
TEST(ItemsAheadTest, StoredItems_HaveTheBitsOfThoseThatAreNot) {
  for (const at::ScalarType compute : {at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const int chunks : {0, 1}) {
      int left = chunks;
      const auto type = compute == at::kBFloat16 ? data::ValueType::kBf16 : data::ValueType::kFp32;
      Rig rig(compute,
              std::make_shared<data::ItemMemory>(
                  type, [&left](size_t bytes) -> std::shared_ptr<std::byte> {
                    if (left-- <= 0) return nullptr;
                    return {static_cast<std::byte*>(std::aligned_alloc(256, bytes)), std::free};
                  }));
      const at::Tensor expected = rig.source.ItemsOf(0, {1, 2, 5}).to(compute);
      EXPECT_TRUE(at::equal(rig.TakeOrDie(LaneOf(0, {1, 2, 5})).values, expected)) << compute;
      // One of them beside the memory.
      data::Sample::Items& items = rig.source.Of(2).encoders[0];
      const at::Tensor one = rig.source.ItemsOf(0, {2})[1].contiguous();
      items.values[1].assign(one.const_data_ptr<float>(), one.const_data_ptr<float>() + 12);
      items.stored[1] = nullptr;
      EXPECT_TRUE(at::equal(rig.TakeOrDie(LaneOf(0, {1, 2, 5})).values, expected)) << compute;
    }
  }
}

TEST(ItemsAheadTest, SamplesThatDidNotDecode_AreToldWhenTheyAreTaken) {
  Rig rig;
  rig.source.Of(4).corrupt = true;
  rig.source.Of(4).corrupt_reason = "made so";
  const Lane lane = LaneOf(0, {1, 4});
  rig.ahead.Expect({lane});
  rig.ahead.Fetch();
  const ItemsAhead::Items items = rig.TakeOrDie(lane);
  EXPECT_THAT(items.valid, ElementsAre(1, 0));
  ASSERT_EQ(items.corrupt.size(), 1u);
  EXPECT_EQ(items.corrupt[0].sample, 4);
  EXPECT_EQ(items.corrupt[0].reason, "made so");
}

TEST(ItemsAheadTest, ErrorsOfTheSource_ShowUpWhenTheLaneIsTaken) {
  Rig rig;
  const Lane lane = LaneOf(0, {1, 4});
  rig.source.broken = 4;
  rig.ahead.Expect({lane});
  rig.ahead.Fetch();
  rig.source.broken = -1;
  EXPECT_TRUE(rig.ahead.HasFetched(lane)) << "nobody asks the source again";
  const absl::Status status = rig.ahead.Take(lane).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "broken");
  EXPECT_EQ(rig.source.takes[1], 1) << "a source gives a sample once";
  Lane wrong = lane;
  wrong.items[1] = 2;
  EXPECT_EQ(rig.ahead.Take(wrong).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(at::equal(rig.TakeOrDie(lane).values, rig.source.ItemsOf(0, {1, 4})));
}

}  // namespace
}  // namespace phalanx::train

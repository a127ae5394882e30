// Pixels on their way to a device that is busy, from memory that is used again and again.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/device/cuda_device.h"
#include "worker/train/batches.h"
#include "worker/train/items_ahead.h"

namespace phalanx::train {
namespace {

constexpr int64_t kSide = 64, kValues = 3 * kSide * kSide;

// Decodes anew whatever is taken: sample s has s % 4 images.
class Source final : public SampleSource {
 public:
  explicit Source(std::shared_ptr<data::ItemMemory> memory) : memory_(std::move(memory)) {}
  int64_t size() const override { return 1000; }
  data::SampleShape shape(int64_t) const override { return {}; }
  absl::Span<const data::ItemRows> rows(int64_t) const override { return {}; }
  std::string NameOf(int64_t sample) const override { return absl::StrCat("sample ", sample); }
  void Announce(absl::Span<const int64_t>) override {}
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) override {
    auto made = std::make_shared<data::Sample>();
    data::Sample::Items& items = made->encoders.emplace_back();
    for (int64_t item = 0; item < sample % 4; ++item) {
      std::vector<float>& values = items.values.emplace_back(ValuesOf(sample, item));
      if (memory_ == nullptr) continue;
      items.stored_type = memory_->type();
      items.stored.push_back(memory_->Store(values));
      values.clear();
    }
    return std::shared_ptr<const data::Sample>(std::move(made));
  }

  static std::vector<float> ValuesOf(int64_t sample, int64_t item) {
    std::vector<float> values(kValues);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] =
          static_cast<float>((sample * 7919 + item * 104729 + static_cast<int64_t>(i)) % 100003) /
          1234.5f;
    return values;
  }

 private:
  const std::shared_ptr<data::ItemMemory> memory_;
};

ItemsAhead::Lane LaneOf(const std::vector<int64_t>& samples) {
  ItemsAhead::Lane lane{.module = 0, .samples = samples, .items = {}};
  for (const int64_t sample : samples) lane.items.push_back(sample % 4);
  return lane;
}

class ItemsAheadCudaTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    const absl::Status used = device::UseCudaDevice(0);
    ASSERT_TRUE(used.ok()) << used;
    shapes_.encoders = {
        {.module = 0, .kind = data::ItemKind::kImage, .rows = 1, .image_size = kSide}};
  }
  static at::Device Device() { return {at::kCUDA, 0}; }
  // As they would come without any of this.
  static at::Tensor Expected(const ItemsAhead::Lane& lane) {
    std::vector<at::Tensor> items;
    for (size_t i = 0; i < lane.samples.size(); ++i) {
      for (int64_t item = 0; item < lane.items[i]; ++item)
        items.push_back(at::tensor(Source::ValuesOf(lane.samples[i], item)));
    }
    return at::stack(items).view({-1, 3, kSide, kSide}).to(Device()).to(GetParam());
  }

  data::ItemShapes shapes_;
};

// Memory on either side is given to the next lane while passes that read this one, and copies that
// fill it, are still to come.
TEST_P(ItemsAheadCudaTest, LanesBesideABusyDevice_HaveTheBitsOfTheirItems) {
  for (const bool stored : {true, false}) {
    Source source(stored ? PinnedItemMemory(GetParam()) : nullptr);
    ItemsAhead ahead(shapes_, source, Device(), GetParam());
    constexpr int64_t kLanes = 40;
    std::vector<ItemsAhead::Lane> lanes;
    for (int64_t i = 0; i < kLanes; ++i)
      lanes.push_back(LaneOf({i, 3 * i + 1, 5 * i + 2, 7 * i + 3, 4 * i}));
    ahead.Expect(lanes);
    const at::Tensor busy = at::ones({2048, 2048}, at::TensorOptions(Device()));
    std::vector<at::Tensor> copies;
    int64_t allocations = 0;
    for (int64_t i = 0; i < kLanes; ++i) {
      if (i % 3 != 2) ahead.Fetch();  // some lanes are not decoded in time
      for (int pass = 0; pass < 4; ++pass) at::mm(busy, busy);
      const absl::StatusOr<ItemsAhead::Items> items = ahead.Take(lanes[static_cast<size_t>(i)]);
      ASSERT_TRUE(items.ok()) << items.status();
      if (i % 3 != 1) ahead.Fetch();
      for (int pass = 0; pass < 4; ++pass) at::mm(busy, busy);
      copies.push_back(items->values.clone());
    }
    for (size_t i = 0; i < copies.size(); ++i)
      EXPECT_TRUE(at::equal(copies[i], Expected(lanes[i]))) << "lane " << i;

    // From now on nothing is asked of CUDA.
    for (int turn = 0; turn < 3; ++turn) {
      ahead.Expect(lanes);
      for (int64_t i = 0; i < kLanes; ++i) {
        ahead.Fetch();
        const absl::StatusOr<ItemsAhead::Items> items = ahead.Take(lanes[static_cast<size_t>(i)]);
        ASSERT_TRUE(items.ok()) << items.status();
        items->values.sum();
        ASSERT_TRUE(device::AwaitDevice(absl::Seconds(60)).ok());
      }
      const int64_t so_far = device::CountAllocations().allocations;
      if (turn == 2) {
        EXPECT_EQ(so_far, allocations);
      }
      allocations = so_far;
    }
  }
}

// An epoch that ends with copies under way, and one that begins at once.
TEST_P(ItemsAheadCudaTest, LanesThatNobodyTook_LeaveTheNextOnesAlone) {
  const std::shared_ptr<data::ItemMemory> memory = PinnedItemMemory(GetParam());
  Source source(memory);
  const at::Tensor busy = at::ones({4096, 4096}, at::TensorOptions(Device()));
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    ItemsAhead ahead(shapes_, source, Device(), GetParam());
    const ItemsAhead::Lane lane = LaneOf({epoch + 3, epoch + 7, epoch + 2}),
                           never = LaneOf({2 * epoch + 1, epoch + 11});
    ahead.Expect({lane, never});
    ahead.Fetch();
    at::mm(busy, busy);
    const absl::StatusOr<ItemsAhead::Items> items = ahead.Take(lane);
    ASSERT_TRUE(items.ok()) << items.status();
    const at::Tensor copy = items->values.clone();
    ahead.Fetch();
    EXPECT_TRUE(at::equal(copy, Expected(lane))) << "epoch " << epoch;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ItemsAheadCudaTest, testing::Values(at::kBFloat16, at::kFloat),
                         [](const testing::TestParamInfo<at::ScalarType>& info) {
                           return std::string(info.param == at::kFloat ? "fp32" : "bf16");
                         });

}  // namespace
}  // namespace phalanx::train

#include "worker/data/item_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace phalanx::data {
namespace {

// Memory of the heap, `chunks_max` times at most.
struct Heap {
  int chunks = 0, chunks_max = 1000, failures = 0;
  size_t bytes = 0;

  ItemMemory::Allocate Allocator() {
    return [this](size_t wanted) -> std::shared_ptr<std::byte> {
      if (chunks == chunks_max) {
        ++failures;
        return nullptr;
      }
      ++chunks;
      bytes += wanted;
      return {static_cast<std::byte*>(std::aligned_alloc(256, wanted)), std::free};
    };
  }
};

std::vector<float> ValuesOf(const std::shared_ptr<const std::byte>& block, size_t count) {
  std::vector<float> values(count);
  std::memcpy(values.data(), block.get(), count * sizeof(float));
  return values;
}

TEST(ItemMemoryTest, Bf16_IsRoundedToTheNearest_TiesToEven) {
  const auto rounded = [](float value) {
    return std::bit_cast<float>(static_cast<uint32_t>(RoundToBf16(value)) << 16);
  };
  EXPECT_EQ(rounded(1.0f), 1.0f);
  EXPECT_EQ(rounded(-0.0f), 0.0f);
  EXPECT_EQ(rounded(1.0f + 0x1p-8f), 1.0f);                // a tie, to even
  EXPECT_EQ(rounded(1.0f + 3 * 0x1p-8f), 1.0f + 0x1p-6f);  // likewise
  EXPECT_EQ(rounded(1.0f + 0x1p-8f + 0x1p-20f), 1.0f + 0x1p-7f);
  EXPECT_EQ(rounded(-1.0f - 0x1p-9f), -1.0f);
  EXPECT_EQ(rounded(0x1.fffp127f), std::numeric_limits<float>::infinity());
  EXPECT_EQ(rounded(std::numeric_limits<float>::infinity()),
            std::numeric_limits<float>::infinity());
  EXPECT_NE(rounded(std::numeric_limits<float>::quiet_NaN()),
            rounded(std::numeric_limits<float>::quiet_NaN()));
}

TEST(ItemMemoryTest, Values_AreStoredInTheMemorysType) {
  Heap heap;
  const std::vector<float> values = {1.5f, -2.0f, 1.0f + 0x1p-8f};
  ItemMemory whole(ValueType::kFp32, heap.Allocator());
  EXPECT_EQ(ValuesOf(whole.Store(values), 3), values);
  ItemMemory half(ValueType::kBf16, heap.Allocator());
  const std::shared_ptr<const std::byte> block = half.Store(values);
  std::vector<uint16_t> stored(3);
  std::memcpy(stored.data(), block.get(), 6);
  EXPECT_THAT(stored, testing::ElementsAre(0x3fc0, 0xc000, 0x3f80));
}

TEST(ItemMemoryTest, BlocksThatWereLetGo_AreUsedAgain) {
  Heap heap;
  ItemMemory memory(ValueType::kFp32, heap.Allocator());
  const std::vector<float> values(size_t{1} << 20, 1.0f);  // four in a chunk
  const std::byte* first = memory.Store(values).get();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(memory.Store(values).get(), first);
  EXPECT_EQ(heap.chunks, 1);
  std::vector<std::shared_ptr<const std::byte>> held;
  for (int i = 0; i < 4; ++i) held.push_back(memory.Store(values));
  EXPECT_EQ(heap.chunks, 1);
  held.push_back(memory.Store(values));
  EXPECT_EQ(heap.bytes, size_t{32} << 20) << "as many again as there were";
  for (int i = 0; i < 3; ++i) held.push_back(memory.Store(values));
  held.push_back(memory.Store(values));
  EXPECT_EQ(heap.bytes, size_t{64} << 20);
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(held[i].get()) % 256, 0u);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(held[i], held[j]);
  }
}

TEST(ItemMemoryTest, Blocks_OutliveTheMemory) {
  Heap heap;
  std::shared_ptr<const std::byte> block;
  {
    ItemMemory memory(ValueType::kFp32, heap.Allocator());
    block = memory.Store(std::vector<float>{4.0f});
  }
  EXPECT_EQ(ValuesOf(block, 1)[0], 4.0f);
  block = nullptr;
}

TEST(ItemMemoryTest, WithoutMemory_NothingIsStored) {
  Heap heap{.chunks_max = 1};
  ItemMemory memory(ValueType::kFp32, heap.Allocator());
  const std::vector<float> values(size_t{4} << 20);  // a chunk
  const std::shared_ptr<const std::byte> block = memory.Store(values);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(memory.Store(values), nullptr);
}

TEST(ItemMemoryTest, WhereMemoryIsRefused_ItIsAskedForAFewTimes) {
  Heap heap{.chunks_max = 1};
  ItemMemory memory(ValueType::kFp32, heap.Allocator());
  const std::vector<float> values(size_t{4} << 20);  // a chunk
  std::shared_ptr<const std::byte> block = memory.Store(values);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(memory.Store(values), nullptr);
  EXPECT_EQ(heap.failures, ItemMemory::kFailuresMax);
  // What there is goes on being used.
  const std::byte* const address = block.get();
  block = nullptr;
  EXPECT_EQ(memory.Store(values).get(), address);
}

}  // namespace
}  // namespace phalanx::data

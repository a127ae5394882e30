#include "worker/checkpoint/pinned_mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core/posix/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/checkpoint/memory_file.h"

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;

constexpr int64_t kMappedBytes = 2 * kPiece + 4096;

// What was asked of CUDA.
struct Asked {
  std::vector<int64_t> pinned;
  int64_t unpinned = 0;
  int64_t fails_at = -1;  // how many have been pinned
  Pinning Functions() {
    return {.pin =
                [this](std::byte*, size_t bytes) {
                  if (static_cast<int64_t>(pinned.size()) == fails_at) return false;
                  pinned.push_back(static_cast<int64_t>(bytes));
                  return true;
                },
            .unpin = [this](std::byte*) { ++unpinned; }};
  }
};

int64_t ResidentBytes(const PinnedMapping& mapping, std::byte* data) {
  std::vector<unsigned char> pages(static_cast<size_t>((mapping.bytes() + 4095) / 4096));
  EXPECT_EQ(mincore(data, static_cast<size_t>(mapping.bytes()), pages.data()), 0);
  int64_t resident = 0;
  for (const unsigned char page : pages) resident += page & 1;
  return resident * 4096;
}

TEST(PinnedMappingTest, Pin_GoesPieceByPieceOverPagesThatAreThere) {
  Asked asked;
  const UniqueFd fd = AFile(kMappedBytes);
  auto mapping = *PinnedMapping::Map(fd.get(), kMappedBytes, asked.Functions());
  EXPECT_FALSE(mapping->ready());
  std::vector<int64_t> resident;
  ASSERT_TRUE(mapping
                  ->Pin([&] {
                    resident.push_back(ResidentBytes(*mapping, mapping->data()));
                    return true;
                  })
                  .ok());
  EXPECT_TRUE(mapping->ready());
  EXPECT_THAT(asked.pinned, ElementsAre(kPiece, kPiece, 4096));
  EXPECT_THAT(resident, ElementsAre(kPiece, 2 * kPiece, kMappedBytes));
  mapping = nullptr;
  EXPECT_EQ(asked.unpinned, 3);
}

TEST(PinnedMappingTest, PinThatIsEnded_GoesOnWhereItWas) {
  Asked asked;
  const UniqueFd fd = AFile(kMappedBytes);
  auto mapping = *PinnedMapping::Map(fd.get(), kMappedBytes, asked.Functions());
  EXPECT_TRUE(absl::IsCancelled(mapping->Pin([] { return false; })));
  EXPECT_THAT(asked.pinned, ElementsAre(kPiece));
  ASSERT_TRUE(mapping->Pin([] { return true; }).ok());
  EXPECT_THAT(asked.pinned, ElementsAre(kPiece, kPiece, 4096));
  EXPECT_FALSE(mapping->Unpin([] { return false; }));
  EXPECT_EQ(asked.unpinned, 1);
  EXPECT_TRUE(mapping->Unpin([] { return true; }));
  EXPECT_EQ(asked.unpinned, 3);
}

TEST(PinnedMappingTest, MemoryThatCannotBePinned_IsExhausted) {
  Asked asked{.fails_at = 1};
  const UniqueFd fd = AFile(kMappedBytes);
  auto mapping = *PinnedMapping::Map(fd.get(), kMappedBytes, asked.Functions());
  EXPECT_TRUE(absl::IsResourceExhausted(mapping->Pin([] { return true; })));
  mapping = nullptr;
  EXPECT_EQ(asked.unpinned, 1);
}

TEST(PinnedMappingTest, Is_KnowsItsFileAndItsSize) {
  const UniqueFd fd = AFile(4096), other = AFile(4096);
  const UniqueFd again(dup(fd.get()));
  auto of_file = *PinnedMapping::Map(fd.get(), 4096, {});
  EXPECT_TRUE(of_file->Is(again.get(), 4096));
  EXPECT_FALSE(of_file->Is(other.get(), 4096));
  EXPECT_FALSE(of_file->Is(-1, 4096));
  auto of_none = *PinnedMapping::Map(-1, 8192, {});
  EXPECT_TRUE(of_none->Is(-1, 4096));
  EXPECT_FALSE(of_none->Is(-1, 8193));
  EXPECT_FALSE(of_none->Is(fd.get(), 8192));
}

TEST(PinnedMappingTest, WhatIsWrittenThroughIt_IsInTheFile) {
  const UniqueFd fd = AFile(4096);
  auto mapping = *PinnedMapping::Map(fd.get(), 4096, {});
  ASSERT_TRUE(mapping->Pin([] { return true; }).ok());
  mapping->data()[17] = std::byte{42};
  std::byte read{};
  ASSERT_EQ(pread(fd.get(), &read, 1, 17), 1);
  EXPECT_EQ(read, std::byte{42});
}

}  // namespace
}  // namespace phalanx::checkpoint

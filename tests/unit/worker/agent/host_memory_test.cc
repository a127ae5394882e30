#include "worker/agent/host_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "core/checkpoint_io/host_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

using testing::HasSubstr;

constexpr int64_t kBytes = 1 << 20;

int64_t SizeOf(int fd) {
  struct stat info {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return info.st_size;
}

TEST(HostMemoryTest, BuffersOfARank_AreKeptUntilItsJobEnds) {
  HostMemory memory([] { return int64_t{0}; });
  const auto first = memory.BuffersOf(JobId{7}, Epoch{1}, 2, kBytes);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(SizeOf((*first)[0]), kBytes);
  EXPECT_EQ(SizeOf((*first)[1]), kBytes);
  void* written = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, (*first)[0], 0);
  ASSERT_NE(written, MAP_FAILED);
  std::strcpy(static_cast<char*>(written), "state of step 7");
  munmap(written, kBytes);
  ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{1}, 3, kBytes).ok());
  ASSERT_TRUE(memory.BuffersOf(JobId{8}, Epoch{1}, 2, kBytes).ok());
  EXPECT_EQ(memory.bytes(), 6 * kBytes);

  const auto again = memory.BuffersOf(JobId{7}, Epoch{1}, 2, kBytes);
  ASSERT_TRUE(again.ok()) << again.status();
  const void* read = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, (*again)[0], 0);
  ASSERT_NE(read, MAP_FAILED);
  EXPECT_STREQ(static_cast<const char*>(read), "state of step 7");
  munmap(const_cast<void*>(read), kBytes);

  memory.Free(JobId{7});
  EXPECT_EQ(memory.bytes(), 2 * kBytes);
  memory.Free(JobId{});
  EXPECT_EQ(memory.bytes(), 0);
}

TEST(HostMemoryTest, AnotherSize_IsAnotherPair) {
  HostMemory memory([] { return int64_t{0}; });
  ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{1}, 0, kBytes).ok());
  const auto larger = memory.BuffersOf(JobId{7}, Epoch{1}, 0, 2 * kBytes);
  ASSERT_TRUE(larger.ok()) << larger.status();
  EXPECT_EQ(SizeOf((*larger)[1]), 2 * kBytes);
  EXPECT_EQ(memory.bytes(), 4 * kBytes);
}

// What ranks of an epoch have left stays until those of a later one have copies of their own.
TEST(HostMemoryTest, BuffersOfEpochsBefore_AreThereUntilTheyAreNotNeeded) {
  HostMemory memory([] { return int64_t{0}; });
  for (const int32_t rank : {0, 1})
    ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{1}, rank, kBytes).ok());
  ASSERT_TRUE(memory.BuffersOf(JobId{8}, Epoch{1}, 0, kBytes).ok());
  ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{3}, 0, 2 * kBytes).ok());
  EXPECT_EQ(memory.bytes(), 10 * kBytes);
  const auto before = memory.PairsBefore(JobId{7}, Epoch{3}, {0, 1});
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before[1].rank, 1);
  EXPECT_EQ(before[1].epoch, Epoch{1});
  EXPECT_EQ(before[1].bytes, kBytes);
  EXPECT_EQ(SizeOf(before[1].fds[1]), kBytes);
  EXPECT_EQ(memory.PairsBefore(JobId{7}, Epoch{4}, {0}).size(), 2u);
  memory.FreeBefore(JobId{7}, Epoch{3});
  EXPECT_TRUE(memory.PairsBefore(JobId{7}, Epoch{3}, {0, 1}).empty());
  EXPECT_EQ(memory.bytes(), 6 * kBytes);
}

TEST(HostMemoryTest, NoRoomForTwoEpochs_LeavesThatOfTheLaterOne) {
  int64_t available = 4 * kBytes;
  HostMemory memory([&available] { return available; });
  ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{1}, 0, kBytes).ok());
  ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{2}, 0, 2 * kBytes).ok());
  EXPECT_TRUE(memory.PairsBefore(JobId{7}, Epoch{2}, {0}).empty());
  EXPECT_EQ(memory.bytes(), 4 * kBytes);
}

// As a rank leaves it behind its copy of an epoch.
void WriteCopy(int fd, Epoch epoch) {
  checkpoint::HostCopyHeader header{.epoch = epoch.value, .bytes = 8};
  std::memcpy(header.magic, checkpoint::kHostCopyMagic, sizeof header.magic);
  header.checksum = checkpoint::ChecksumOf(header);
  ASSERT_EQ(pwrite(fd, &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
}

// Whoever has mapped them has not to let go of them first.
TEST(HostMemoryTest, NoRoomForTwoEpochsOfOneSize_IsTheSameBuffersAgain) {
  HostMemory memory([] { return 3 * kBytes; });
  const auto first = memory.BuffersOf(JobId{7}, Epoch{1}, 0, kBytes);
  ASSERT_TRUE(first.ok()) << first.status();
  WriteCopy((*first)[1], Epoch{1});
  EXPECT_TRUE(absl::IsResourceExhausted(
      memory.BuffersOf(JobId{7}, Epoch{2}, 0, kBytes, /*beside=*/true).status()));
  EXPECT_EQ(memory.PairsBefore(JobId{7}, Epoch{2}, {0}).size(), 1u) << "it is asked for nothing";
  const auto again = memory.BuffersOf(JobId{7}, Epoch{2}, 0, kBytes);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *first);
  EXPECT_TRUE(memory.PairsBefore(JobId{7}, Epoch{2}, {0}).empty());
  EXPECT_EQ(memory.bytes(), 2 * kBytes);
}

// An epoch that ends before its first copies must not cost those of the one before.
TEST(HostMemoryTest, BuffersWithoutACopy_AreTheNextOnesOfThatSize) {
  HostMemory memory([] { return int64_t{0}; });
  const auto first = *memory.BuffersOf(JobId{7}, Epoch{1}, 0, kBytes);
  WriteCopy(first[0], Epoch{1});
  const auto second = *memory.BuffersOf(JobId{7}, Epoch{2}, 0, kBytes);
  EXPECT_NE(second, first);
  WriteCopy(second[1], Epoch{1});  // of whoever had them: none of this epoch
  const auto third = *memory.BuffersOf(JobId{7}, Epoch{3}, 0, kBytes);
  EXPECT_EQ(third, second);
  const auto before = memory.PairsBefore(JobId{7}, Epoch{3}, {0});
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before[0].epoch, Epoch{1});
  EXPECT_EQ(before[0].fds, first);
  EXPECT_EQ(before[1].epoch, Epoch{2}) << "else the copies of other ranks would look like all";
  EXPECT_EQ(before[1].bytes, checkpoint::kHostCopyPage);
}

TEST(HostMemoryTest, NoRoom_GoesToWhatHasNoCopyFirst) {
  int64_t available = 100 * kBytes;
  HostMemory memory([&available] { return available; });
  const auto whole = *memory.BuffersOf(JobId{7}, Epoch{1}, 0, kBytes);
  WriteCopy(whole[0], Epoch{1});
  ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{2}, 1, 2 * kBytes).ok());
  available = 7 * kBytes;  // two are promised for the first pair, four for the other
  EXPECT_FALSE(memory.BuffersOf(JobId{7}, Epoch{3}, 0, 2 * kBytes, /*beside=*/true).ok());
  ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{3}, 0, 2 * kBytes).ok());
  const auto before = memory.PairsBefore(JobId{7}, Epoch{3}, {0});
  ASSERT_EQ(before.size(), 1u);
  EXPECT_EQ(before[0].fds, whole);
}

TEST(HostMemoryTest, PairsOfAnEpoch_AreThoseOfTheRanksAskedFor) {
  HostMemory memory([] { return int64_t{0}; });
  for (const Epoch epoch : {Epoch{1}, Epoch{2}}) {
    for (const int32_t rank : {0, 1})
      ASSERT_TRUE(memory.BuffersOf(JobId{7}, epoch, rank, kBytes).ok());
    WriteCopy(memory.PairsOf(JobId{7}, epoch, {0})[0].fds[0], epoch);
    WriteCopy(memory.PairsOf(JobId{7}, epoch, {1})[0].fds[0], epoch);
  }
  const auto pairs = memory.PairsOf(JobId{7}, Epoch{2}, {1});
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_EQ(pairs[0].rank, 1);
  EXPECT_EQ(pairs[0].epoch, Epoch{2});
}

TEST(HostMemoryTest, MoreThanTheNodeHas_IsRefusedAndTakesNothing) {
  HostMemory memory([] { return 2 * kBytes - 1; });
  const auto refused = memory.BuffersOf(JobId{7}, Epoch{1}, 4, kBytes);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("rank 4 needs two host buffers of 1048576 bytes for its optimizer state; "
                        "the node has 2097151 available"));
  EXPECT_EQ(memory.bytes(), 0);
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
    EXPECT_EQ(memory.BuffersOf(JobId{7}, Epoch{1}, 4, bytes).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// What the node says to be available does not know what others have been given a moment ago.
TEST(HostMemoryTest, WhatWasGivenAndNotYetWritten_IsTaken) {
  int64_t available = 5 * kBytes;
  HostMemory memory([&available] { return available; });
  const auto first = memory.BuffersOf(JobId{7}, Epoch{1}, 0, kBytes);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(memory.BuffersOf(JobId{7}, Epoch{1}, 1, kBytes).ok());
  EXPECT_THAT(memory.BuffersOf(JobId{7}, Epoch{1}, 2, kBytes).status().message(),
              HasSubstr("the node has 1048576 available"));
  // Written, it is the node that counts it.
  for (const int fd : *first) {
    void* pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    ASSERT_NE(pages, MAP_FAILED);
    std::memset(pages, 1, kBytes);
    munmap(pages, kBytes);
  }
  available = 4 * kBytes;
  EXPECT_TRUE(memory.BuffersOf(JobId{7}, Epoch{1}, 2, kBytes).ok());
}

TEST(HostMemoryTest, Available_IsKnownHere) { EXPECT_GT(AvailableHostMemory(), 0); }

}  // namespace
}  // namespace phalanx::agent

#include "worker/rank/heap.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace phalanx::rank {
namespace {

constexpr size_t kBlocks = 16;
constexpr size_t kBlockBytes = 4 << 20;
constexpr size_t kPageBytes = 4096;

long PageFaults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

int64_t ResidentPages() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident;
}

// Takes 64 MiB, writes them and lets them go.
void UseMemory() {
  std::vector<void*> blocks;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::malloc(kBlockBytes));
    std::memset(blocks.back(), 1, kBlockBytes);
  }
  for (void* block : blocks) std::free(block);
}

TEST(HeapTest, MemoryTakenAgain_CostsNoFaults) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's heap, which lets glibc answer for it";
#endif
  if (!KeepFreedMemory()) GTEST_SKIP() << "a sanitizer's heap";
  UseMemory();
  const long before = PageFaults();
  for (int i = 0; i < 4; ++i) UseMemory();
  EXPECT_LT(PageFaults() - before, static_cast<long>(kBlocks * kBlockBytes / kPageBytes / 2));
}

TEST(HeapTest, FreedMemory_IsGivenBackOnRequest) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's heap, which lets glibc answer for it";
#endif
  if (!KeepFreedMemory()) GTEST_SKIP() << "a sanitizer's heap";
  UseMemory();
  const int64_t kept = ResidentPages();
  GiveFreedMemoryBack();
  const auto used = static_cast<int64_t>(kBlocks * kBlockBytes / kPageBytes);
  EXPECT_LT(ResidentPages(), kept - used * 3 / 4);
}

}  // namespace
}  // namespace phalanx::rank

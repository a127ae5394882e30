#include "worker/rank/heap.h"

#include <malloc.h>

namespace phalanx::rank {
namespace {

constexpr int kBlockBytesMax = 32 << 20;
constexpr int kNever = -1;

}  // namespace

bool KeepFreedMemory() {
  // Both: a threshold for blocks of their own that is left to glibc grows with what is freed.
  return mallopt(M_MMAP_THRESHOLD, kBlockBytesMax) == 1 && mallopt(M_TRIM_THRESHOLD, kNever) == 1;
}

void GiveFreedMemoryBack() { malloc_trim(0); }

}  // namespace phalanx::rank

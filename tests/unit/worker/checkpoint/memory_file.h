// tests/unit/worker/checkpoint/memory_file.h: files in memory, as those of a daemon that are
// pinned.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "core/posix/unique_fd.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/pinned_mapping.h"

namespace phalanx::checkpoint {

inline constexpr int64_t kPiece = PinnedMapping::kPieceBytes;

inline UniqueFd AFile(int64_t bytes) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
  return fd;
}

}  // namespace phalanx::checkpoint

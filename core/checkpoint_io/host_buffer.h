// core/checkpoint_io/host_buffer.h: what a buffer of host memory says of the copy of state in it.
//
// A rank writes it, its daemon keeps it, and whoever takes the state over reads it, maybe on
// another node (worker/checkpoint/copy_link.h). Values lie as the node's processor has them: where
// another one's has them otherwise there is no header that it could read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace phalanx::checkpoint {

inline constexpr int64_t kHostCopyPage = 4096;

// Whose state a buffer has, of which step, and from where training goes on with it. Written whole,
// behind the data; `checksum` is of all before it, so what is torn or was never written does not
// read as a header.
struct HostCopyHeader {
  char magic[16] = {};  // kHostCopyMagic
  uint64_t store = 0;
  int64_t job = 0, epoch = 0, step = 0;
  uint64_t plan = 0;  // first 64 bits of its digest
  int64_t rank = 0;
  int64_t bytes = 0;  // behind the page
  // The decision of that step, and counts up to it.
  int64_t verdict = 0;
  double loss = 0, gradient_norm = 0, gradient_scale = 0, counted_tokens = 0, corrupt_samples = 0;
  int64_t tokens = 0, images = 0, sounds = 0;
  int64_t updates = 0, skipped_in_a_row = 0;
  uint64_t checksum = 0;
};
inline constexpr char kHostCopyMagic[16] = "phalanx-state-2";

uint64_t ChecksumOf(const HostCopyHeader& header);
// Of a buffer's first page. Errors: NotFound where there is no whole copy.
absl::StatusOr<HostCopyHeader> ReadHostCopyHeader(absl::Span<const std::byte> buffer);
// The same of the first page alone, of a buffer of so many bytes.
absl::StatusOr<HostCopyHeader> HeaderOnPage(absl::Span<const std::byte> page, int64_t bytes);

}  // namespace phalanx::checkpoint

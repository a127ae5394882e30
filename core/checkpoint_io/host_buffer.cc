#include "core/checkpoint_io/host_buffer.h"

#include <cstring>

#include "core/base/digest.h"

namespace phalanx::checkpoint {

uint64_t ChecksumOf(const HostCopyHeader& header) {
  return Digest64({reinterpret_cast<const char*>(&header), offsetof(HostCopyHeader, checksum)});
}

absl::StatusOr<HostCopyHeader> ReadHostCopyHeader(absl::Span<const std::byte> buffer) {
  return HeaderOnPage(buffer, static_cast<int64_t>(buffer.size()));
}

absl::StatusOr<HostCopyHeader> HeaderOnPage(absl::Span<const std::byte> page, int64_t bytes) {
  HostCopyHeader header;
  if (page.size() < static_cast<size_t>(kHostCopyPage))
    return absl::NotFoundError("the buffer has no room for a copy of state");
  std::memcpy(&header, page.data(), sizeof header);
  if (std::memcmp(header.magic, kHostCopyMagic, sizeof header.magic) != 0 ||
      header.checksum != ChecksumOf(header) || header.bytes < 0 ||
      header.bytes > bytes - kHostCopyPage) {
    return absl::NotFoundError("the buffer has no whole copy of state");
  }
  return header;
}

}  // namespace phalanx::checkpoint

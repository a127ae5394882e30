// coordinator/wire/seal.h: what lies in a store carries the version of its form and a checksum.
//
// Sealed bytes are [schema version, 4 bytes][CRC-32, 4 bytes][payload], numbers little-endian. The
// checksum covers the version, the payload, and the number under which the bytes lie, so bytes that
// ended up under another number are found too.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::coordinator {

// Version 1 had no seal, and version 2 no identity among its marks: a store of such a version is
// rewritten when it is opened. It goes up where an older coordinator would read what is there as
// something else; fields and kinds of records are added without.
inline constexpr uint32_t kStoreSchema = 3;

std::string Seal(absl::string_view payload, uint64_t number, uint32_t schema = kStoreSchema);

// The payload, a part of `sealed`. Errors: DataLoss for damage; FailedPrecondition if a newer
// version wrote it.
absl::StatusOr<absl::string_view> Unseal(absl::string_view sealed, uint64_t number);

}  // namespace phalanx::coordinator

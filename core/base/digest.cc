#include "core/base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/str_cat.h"

namespace phalanx {

std::string Digest(absl::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

uint64_t Digest64(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace phalanx

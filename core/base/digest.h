// core/base/digest.h: fingerprints (XXH3) of bytes, for agreement and not for secrecy.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace phalanx {

// 128 bits: 32 hexadecimal digits.
std::string Digest(absl::string_view bytes);

// Of one of many pieces, each of which is known by its place.
uint64_t Digest64(absl::string_view bytes);

}  // namespace phalanx

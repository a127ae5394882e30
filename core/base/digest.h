// core/base/digest.h: a 128-bit fingerprint (XXH3) of bytes, for agreement and not for secrecy.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx {

// 32 hexadecimal digits.
std::string Digest(absl::string_view bytes);

}  // namespace phalanx

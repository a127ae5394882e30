// core/base/utf8.h: characters of text from elsewhere. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace phalanx {

// Bytes of the character that `text`, which is not empty, begins with; 0 if it is no UTF-8: a stray
// continuation, an overlong form, half of a surrogate pair, beyond U+10FFFF.
size_t Utf8Bytes(absl::string_view text, uint32_t& character);
// Whether all of it is.
bool IsUtf8(absl::string_view text);

}  // namespace phalanx

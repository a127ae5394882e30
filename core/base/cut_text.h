// core/base/cut_text.h: texts of others, kept to a length. Pure.
#pragma once

#include <cstddef>
#include <string>

namespace phalanx {

// The first `bytes_max` bytes of UTF-8, less where that would split a character, and then how many
// bytes are missing; all of it where it is no longer than that.
std::string CutText(std::string text, size_t bytes_max);

}  // namespace phalanx

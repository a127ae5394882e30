#include "core/base/terminal_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace phalanx {
namespace {

// Of the character E2 `second` `third`: U+200B to U+200F, U+2028 to U+202E, U+2066 to U+2069.
bool IsInvisible(uint8_t second, uint8_t third) {
  if (second == 0x80) return (third >= 0x8B && third <= 0x8F) || (third >= 0xA8 && third <= 0xAE);
  return second == 0x81 && third >= 0xA6 && third <= 0xA9;
}

// The length of the character that `text` begins with, if it is one that may be shown; else 0.
size_t ShownBytes(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    return first == '\t' || first == '\n' || (first >= 0x20 && first != 0x7F) ? 1 : 0;
  }
  const size_t bytes = first >= 0xF0 && first < 0xF5   ? 4
                       : first >= 0xE0 && first < 0xF0 ? 3
                       : first >= 0xC2 && first < 0xE0 ? 2
                                                       : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // U+0080 to U+009F, controls again; longer forms of what has a shorter one, which some decoders
  // take for it; halves of surrogate pairs; beyond U+10FFFF.
  const bool refused = (first == 0xC2 && byte(1) < 0xA0) || (first == 0xE0 && byte(1) < 0xA0) ||
                       (first == 0xED && byte(1) >= 0xA0) || (first == 0xF0 && byte(1) < 0x90) ||
                       (first == 0xF4 && byte(1) >= 0x90);
  return refused || (first == 0xE2 && IsInvisible(byte(1), byte(2))) ? 0 : bytes;
}

}  // namespace

std::string TerminalText(absl::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = ShownBytes(text);
    if (bytes == 0) {
      absl::StrAppendFormat(&shown, "\\x%02x", static_cast<uint8_t>(text[0]));
    } else {
      shown.append(text.data(), bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return shown;
}

std::string LineText(absl::string_view text) {
  return absl::StrReplaceAll(TerminalText(text), {{"\n", "\\n"}, {"\t", "\\t"}});
}

}  // namespace phalanx

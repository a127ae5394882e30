#include "core/base/terminal_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace phalanx {
namespace {

// Characters without a shape of their own, which hide, join or turn what is around them, and those
// that end a line or a paragraph.
bool IsInvisible(char32_t character) {
  static constexpr struct {
    char32_t first, last;
  } kRanges[] = {{0x00AD, 0x00AD}, {0x061C, 0x061C}, {0x180E, 0x180E},
                 {0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F},
                 {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges), [character](const auto& range) {
    return character >= range.first && character <= range.last;
  });
}

// Of a UTF-8 sequence of `bytes` bytes, at least two.
char32_t CharacterOf(absl::string_view text, size_t bytes) {
  char32_t character = static_cast<uint8_t>(text[0]) & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    character = (character << 6) | (static_cast<uint8_t>(text[i]) & 0x3F);
  }
  return character;
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
  return refused || IsInvisible(CharacterOf(text, bytes)) ? 0 : bytes;
}

// The length of the character that `text` begins with, if it is one that must not be shown; else 0,
// also of what is no UTF-8.
size_t HiddenBytes(absl::string_view text, char32_t& character) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) {
    character = first;
    return ShownBytes(text) == 0 ? 1 : 0;
  }
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) return 0;
  }
  character = CharacterOf(text, bytes);
  return character < 0xA0 || IsInvisible(character) ? bytes : 0;
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

std::string EscapedText(absl::string_view text, Escapes escapes) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    char32_t character = 0;
    size_t bytes = HiddenBytes(text, character);
    const auto value = static_cast<uint32_t>(character);
    if (bytes == 0) {
      bytes = 1;
      shown.push_back(text[0]);
    } else if (value <= 0xFFFF) {
      absl::StrAppendFormat(&shown, "\\u%04x", value);
    } else if (escapes == Escapes::kYaml) {
      absl::StrAppendFormat(&shown, "\\U%08x", value);
    } else {
      absl::StrAppendFormat(&shown, "\\u%04x\\u%04x", 0xD800 + ((value - 0x10000) >> 10),
                            0xDC00 + ((value - 0x10000) & 0x3FF));
    }
    text.remove_prefix(bytes);
  }
  return shown;
}

std::string LineText(absl::string_view text) {
  return absl::StrReplaceAll(TerminalText(text), {{"\n", "\\n"}, {"\t", "\\t"}});
}

}  // namespace phalanx

#include "core/base/utf8.h"

namespace phalanx {

size_t Utf8Bytes(absl::string_view text, uint32_t& character) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t bytes = lead < 0x80   ? 1
                       : lead < 0xC2 ? 0
                       : lead < 0xE0 ? 2
                       : lead < 0xF0 ? 3
                       : lead < 0xF5 ? 4
                                     : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  uint32_t code = bytes == 1 ? lead : lead & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = (code << 6) | (byte(i) & 0x3Fu);
  }
  if ((bytes == 3 && code < 0x800) || (bytes == 4 && (code < 0x10000 || code > 0x10FFFF)) ||
      (code >= 0xD800 && code < 0xE000)) {
    return 0;
  }
  character = code;
  return bytes;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = Utf8Bytes(text, character);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace phalanx

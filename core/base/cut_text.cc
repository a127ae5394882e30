#include "core/base/cut_text.h"

#include "absl/strings/str_cat.h"

namespace phalanx {

std::string CutText(std::string text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  const auto continues = [&text](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  while (end > 0 && continues(end)) --end;
  const size_t missing = text.size() - end;
  text.resize(end);
  absl::StrAppend(&text, "... (", missing, " bytes more)");
  return text;
}

}  // namespace phalanx

#include "core/wire/xml_text.h"

#include <algorithm>

#include "absl/strings/str_replace.h"

namespace phalanx::wire {

std::string XmlText(absl::string_view text) {
  std::string plain(text);
  std::replace_if(
      plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return absl::StrReplaceAll(plain,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

}  // namespace phalanx::wire

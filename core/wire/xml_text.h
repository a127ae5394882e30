// core/wire/xml_text.h: text of others in a picture. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::wire {

// `text` between tags or double quotes of XML, which has no place for control characters: each is a
// space.
std::string XmlText(absl::string_view text);

}  // namespace phalanx::wire

// client/terminal_text.h: text of others on its way to a terminal.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::client {

// `text` with everything that a terminal would obey written out: control characters but tab and
// line end, C1 controls, and bytes that are no UTF-8, each byte as \x1b.
std::string TerminalText(absl::string_view text);

}  // namespace phalanx::client

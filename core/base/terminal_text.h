// core/base/terminal_text.h: text of others on its way to a terminal or a log.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx {

// `text` with everything that a terminal would obey or hide written out: control characters but
// tab and line end, C1 controls, characters that turn the direction of writing, end a line or a
// paragraph, or have no shape (zero-width and soft hyphens, U+200B to U+200F, U+2028 to U+202E,
// U+2060 to U+206F, byte order marks, tags and the like), and bytes that are no UTF-8, each byte as
// \x1b.
std::string TerminalText(absl::string_view text);

// The same of JSON, or of YAML with its strings in quotes: each such character is escaped as
// strings there have it, \u202e, so that whoever parses it finds what was there. Bytes that are no
// UTF-8 stay.
enum class Escapes { kJson, kYaml };
std::string EscapedText(absl::string_view text, Escapes escapes);

// The same as TerminalText on one line: line ends and tabs are written as \n and \t.
std::string LineText(absl::string_view text);

}  // namespace phalanx

// core/wire/yaml_text.h: text on its way into libyaml and out of it.
//
// What need not be understood to be refused is refused before a parser sees it. What libyaml takes
// for a line end, or does not take at all, stands in YamlText as something that it leaves alone,
// one character for one: positions stay. Scalars on the way out are plain where libyaml reads them
// back as the same text, else in double quotes.
//
// Thread-safe: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::wire {

// InvalidArgument with one violation: "line L, column C: RULE". Both count from 1, columns in
// characters; 0: unknown.
absl::Status YamlFault(absl::string_view rule, size_t line, size_t column);

struct YamlText {
  std::string text;
  bool has_stand_ins = false;
};

// Errors: YamlFault of text beyond `bytes_max`, of control characters and of what is no UTF-8.
absl::StatusOr<YamlText> PrepareYaml(absl::string_view text, size_t bytes_max);

// `scalar`, a part of a YamlText that has stand-ins, as it was written.
std::string WithoutStandIns(absl::string_view scalar);

// Whether a control character, but tab and line ends, is in `text`.
bool HasControl(absl::string_view text);

// Whether a plain scalar reads `word`: no null, nothing that begins, ends or cuts it short.
// `in_flow`: within [] or {}.
bool IsPlainYaml(absl::string_view word, bool in_flow);

// `text` in double quotes, on one line. What is no UTF-8 becomes U+FFFD.
std::string QuotedYaml(absl::string_view text);

}  // namespace phalanx::wire

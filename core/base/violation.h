// core/base/violation.h: everything that is wrong with an input, all at once.
//
// A violation names the field as the user spelled it, the value found and the rule that it breaks:
// "spec.modules[1].parallel.tp: 3: tp*cp*pp must divide ranks (4)".
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace phalanx {

struct Violation {
  std::string field;  // path in the document; empty: the document as a whole
  std::string value;  // as written, cut to kValueMax; empty: nothing was written
  std::string rule;   // a phrase: what must hold
  int32_t line = 0;   // of the document, from 1; 0: unknown
  friend bool operator==(const Violation&, const Violation&) = default;
};

// "field: value: rule", with empty parts left out.
std::string ToString(const Violation& violation);

// InvalidArgument whose message lists every violation, a line each; OK for none. The violations
// themselves travel as a payload that ViolationsOf() reads back.
absl::Status ViolationsStatus(const std::vector<Violation>& violations);
std::vector<Violation> ViolationsOf(const absl::Status& status);

}  // namespace phalanx

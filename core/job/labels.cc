#include "core/job/labels.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace phalanx::job {
namespace {

bool HasControl(absl::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_iscntrl(c); });
}

void Check(absl::string_view field, const std::map<std::string, std::string>& labels,
           std::vector<Violation>& violations) {
  for (const auto& [key, value] : labels) {
    if (!HasControl(key) && !HasControl(value)) continue;
    violations.push_back({.field = absl::StrCat(field, ".", key),
                          .value = value,
                          .rule = "must have no control characters"});
  }
}

}  // namespace

std::vector<Violation> LabelViolations(const JobSpec& spec) {
  std::vector<Violation> violations;
  Check("metadata.labels", spec.labels, violations);
  Check("spec.resources.node_selector", spec.resources.node_selector, violations);
  return violations;
}

}  // namespace phalanx::job

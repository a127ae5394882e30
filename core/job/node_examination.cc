#include "core/job/node_examination.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace phalanx::job {

absl::string_view ToString(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::kOk:
      return "ok";
    case Finding::Verdict::kSkipped:
      return "skipped";
    case Finding::Verdict::kWarning:
      return "warning";
    case Finding::Verdict::kProblem:
      return "problem";
  }
  return "";
}

bool IsTrouble(const Finding& finding) {
  return finding.verdict == Finding::Verdict::kWarning ||
         finding.verdict == Finding::Verdict::kProblem;
}

bool IsCheckName(absl::string_view name) {
  return !name.empty() && name.size() <= kCheckNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return absl::ascii_islower(byte) || absl::ascii_isdigit(byte) || c == ' ' || c == '-';
         });
}

}  // namespace phalanx::job

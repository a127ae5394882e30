#include "core/base/violation.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace phalanx {
namespace {

constexpr absl::string_view kPayloadUrl = "phalanx.violations";
constexpr char kFieldSeparator = '\x1f';
constexpr char kRecordSeparator = '\x1e';

// Values and rules quote what users write; a control character of theirs must not pass for a
// separator or a command to the terminal.
std::string Clean(std::string text) {
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return text;
}

}  // namespace

std::string ToString(const Violation& violation) {
  std::vector<absl::string_view> parts;
  for (const std::string* part : {&violation.field, &violation.value, &violation.rule}) {
    if (!part->empty()) parts.push_back(*part);
  }
  return absl::StrJoin(parts, ": ");
}

absl::Status ViolationsStatus(const std::vector<Violation>& violations) {
  if (violations.empty()) return absl::OkStatus();
  std::vector<std::string> lines;
  std::vector<std::string> records;
  for (const Violation& raw : violations) {
    const Violation violation{Clean(raw.field), Clean(raw.value), Clean(raw.rule), raw.line};
    lines.push_back(ToString(violation));
    records.push_back(absl::StrJoin(
        {violation.field, violation.value, violation.rule, absl::StrCat(violation.line)},
        std::string(1, kFieldSeparator)));
  }
  absl::Status status = absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
  status.SetPayload(kPayloadUrl,
                    absl::Cord(absl::StrJoin(records, std::string(1, kRecordSeparator))));
  return status;
}

std::vector<Violation> ViolationsOf(const absl::Status& status) {
  std::vector<Violation> violations;
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return violations;
  for (absl::string_view record : absl::StrSplit(std::string(*payload), kRecordSeparator)) {
    std::vector<std::string> parts = absl::StrSplit(record, kFieldSeparator);
    parts.resize(4);
    Violation violation{std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
    if (!absl::SimpleAtoi(parts[3], &violation.line)) violation.line = 0;
    violations.push_back(std::move(violation));
  }
  return violations;
}

}  // namespace phalanx

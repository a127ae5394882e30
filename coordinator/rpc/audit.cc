#include "coordinator/rpc/audit.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/cut_text.h"
#include "core/base/terminal_text.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kTextBytesMax = 256;

}  // namespace

std::string Quoted(absl::string_view text) {
  const std::string cut = CutText(std::string(text), kTextBytesMax);
  return absl::StrCat("\"", LineText(absl::StrReplaceAll(cut, {{"\\", "\\\\"}, {"\"", "\\\""}})),
                      "\"");
}

std::string AuditLine(const Caller& caller, absl::string_view method, absl::string_view object,
                      const absl::Status& outcome) {
  const bool named = caller.has_value() && !caller->name.empty();
  std::string line =
      absl::StrCat("audit who=", named ? caller->name : "-",
                   " role=", named ? RoleName(caller->role) : "-", " method=", method);
  if (!object.empty()) absl::StrAppend(&line, " ", object);
  absl::StrAppend(&line, " outcome=", absl::StatusCodeToString(outcome.code()));
  if (!outcome.ok()) {
    absl::StrAppend(&line, " reason=", Quoted(outcome.message()));
  }
  return line;
}

}  // namespace phalanx::coordinator

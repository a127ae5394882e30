#include "core/base/empty_flags.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/cut_text.h"
#include "core/base/terminal_text.h"

namespace phalanx {
namespace {

constexpr size_t kNameBytesShown = 64;

constexpr int kUsage = 2;

}  // namespace

Violation EmptyFlag(absl::string_view name, bool required) {
  return {.field = std::string(name),
          .value = "\"\"",
          .rule = required ? "must have a value" : "must have a value, or be left out"};
}

Violation FlagOfNoText(absl::string_view name, absl::string_view value) {
  return {.field = std::string(name),
          .value = absl::StrCat("\"", CutText(std::string(value), kNameBytesShown), "\""),
          .rule = "must be UTF-8"};
}

int TellEmptyFlags(const std::vector<Violation>& empty, std::ostream& out) {
  for (const Violation& one : empty) out << TerminalText(ToString(one)) << "\n";
  return kUsage;
}

std::vector<Violation> FlagsWithoutValue(absl::Span<const char* const> arguments) {
  std::vector<Violation> found;
  for (const absl::string_view argument : arguments) {
    if (argument == "--") break;
    const size_t equals = argument.find('=');
    if (!absl::StartsWith(argument, "--") || equals != argument.size() - 1) continue;
    found.push_back(EmptyFlag(CutText(std::string(argument.substr(0, equals)), kNameBytesShown),
                              /*required=*/false));
  }
  return found;
}

}  // namespace phalanx

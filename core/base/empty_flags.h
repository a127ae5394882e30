// core/base/empty_flags.h: flags and arguments of a command line whose value is empty, or no text.
//
// `--name ''` is most often a variable of a script that is not set: taken as a flag that was left
// out, it does something else than was asked. No flag of our programs has an empty value. Pure; of
// the parser it knows the shape alone, which is CLI11's.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/utf8.h"
#include "core/base/violation.h"

namespace phalanx {

// "--name: "": must have a value, or be left out".
Violation EmptyFlag(absl::string_view name, bool required);

// Those written as `--name=`, whose value the parser takes to be the argument behind it.
std::vector<Violation> FlagsWithoutValue(absl::Span<const char* const> arguments);

// "--name: "\xff": must be UTF-8".
Violation FlagOfNoText(absl::string_view name, absl::string_view value);

// Writes them, a line each, as a terminal may show them. Returns the exit code: of usage.
int TellEmptyFlags(const std::vector<Violation>& empty, std::ostream& out);

// Those that an App has read, and the commands of it that were given.
template <typename App>
std::vector<Violation> EmptyFlagsOf(const App& app) {
  std::vector<Violation> found;
  for (const auto* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (!value.empty()) continue;
      found.push_back(EmptyFlag(option->get_name(/*positional=*/option->get_positional()),
                                option->get_required()));
      break;
    }
  }
  for (const auto* command : app.get_subcommands()) {
    for (Violation& below : EmptyFlagsOf(*command)) found.push_back(std::move(below));
  }
  return found;
}
// The same of values that no message of a call can hold.
template <typename App>
std::vector<Violation> FlagsOfNoText(const App& app) {
  std::vector<Violation> found;
  for (const auto* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (IsUtf8(value)) continue;
      found.push_back(
          FlagOfNoText(option->get_name(/*positional=*/option->get_positional()), value));
    }
  }
  for (const auto* command : app.get_subcommands()) {
    for (Violation& below : FlagsOfNoText(*command)) found.push_back(std::move(below));
  }
  return found;
}

}  // namespace phalanx

// client/completion.h: scripts that complete `phalanx` command lines.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace phalanx::client {

struct CommandWords {
  std::string name;
  std::string description;
  std::vector<std::string> options;   // "--wait", "-o", ...; of the commands below it too
  std::vector<std::string> commands;  // below it: "list", ...
};

// For "bash", "zsh" or "fish"; empty for any other shell.
std::string CompletionScript(absl::string_view shell, const std::vector<CommandWords>& commands);

}  // namespace phalanx::client

// tests/support/files.h: folders and files of tests. What cannot be made or read ends the program.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::support {

// A new folder, removed when the program ends in good order.
std::string MakeFolder(absl::string_view name);
void WriteFile(const std::string& path, absl::string_view bytes);
// By a rename: whoever reads it meanwhile has all of the old one or all of the new one.
void ReplaceFile(const std::string& path, absl::string_view bytes);
std::string ReadFile(const std::string& path);

// A program that scripts/setup brings into a folder of its name: in PATH or there; empty if
// nowhere.
std::string FindTool(absl::string_view name);

}  // namespace phalanx::support

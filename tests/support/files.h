// tests/support/files.h: folders and files of tests. What cannot be made or read ends the program.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::support {

// A new folder, removed when the program ends in good order.
std::string MakeFolder(absl::string_view name);
void WriteFile(const std::string& path, absl::string_view bytes);
std::string ReadFile(const std::string& path);

}  // namespace phalanx::support

#include "tests/support/paths.h"

#include <cstdlib>

namespace phalanx::tests {

std::string SourceDir() { return PHALANX_SOURCE_DIR; }
std::string BinDir() { return PHALANX_BIN_DIR; }
std::string DepsDir() {
  const char *folder = std::getenv("PHALANX_DEPS_DIR"), *home = std::getenv("HOME");
  if (folder != nullptr) return folder;
  return std::string(home == nullptr ? "" : home) + "/.cache/phalanx/deps";
}

}  // namespace phalanx::tests

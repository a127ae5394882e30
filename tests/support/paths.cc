#include "tests/support/paths.h"

namespace phalanx::tests {

std::string SourceDir() { return PHALANX_SOURCE_DIR; }
std::string BinDir() { return PHALANX_BIN_DIR; }

}  // namespace phalanx::tests

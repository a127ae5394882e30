// tests/support/paths.h: where the checkout and the built programs lie.
//
// One source file holds both paths of a build, so that a second checkout finds what the first has
// compiled.
#pragma once

#include <string>

namespace phalanx::tests {

std::string SourceDir();  // the checkout
std::string BinDir();     // executables of this build
std::string DepsDir();    // what scripts/setup has fetched

}  // namespace phalanx::tests

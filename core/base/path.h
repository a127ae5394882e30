// core/base/path.h: paths as job files write them. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx {

// `path` as seen from `directory`: as it is where it is absolute or empty, or where no directory is
// known.
std::string ResolvePath(absl::string_view directory, absl::string_view path);

}  // namespace phalanx

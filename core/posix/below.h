// core/posix/below.h: whether what is open lies where it may.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace phalanx {

// Where a path leads may change until it is opened, so what was opened is asked: it must be one of
// these folders, absolute, or lie below one of them; none: it may lie anywhere. `descriptor`: open,
// also as O_PATH. Errors: InvalidArgument: "leads to /a/b; must lead below /c"; a folder that is
// not found is an error of its own unless another one holds it.
absl::Status CheckBelow(int descriptor, const std::vector<std::string>& below);

}  // namespace phalanx

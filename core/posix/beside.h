// core/posix/beside.h: threads for one calculation.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"

namespace phalanx {

// Runs run(0) on the caller's thread and run(1) to run(count - 1) each on one of its own, as far as
// the system gives any: the others are not run. Returns once all that run have returned.
void RunBeside(size_t count, absl::FunctionRef<void(size_t)> run);

}  // namespace phalanx

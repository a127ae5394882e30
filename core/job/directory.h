// core/job/directory.h: the folder that the paths of a job file start from. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace phalanx::job {

// Whether a job may be submitted with it. Thread-safe.
// Errors: InvalidArgument with one violation, of "document.directory".
absl::Status CheckDirectory(absl::string_view directory);

}  // namespace phalanx::job

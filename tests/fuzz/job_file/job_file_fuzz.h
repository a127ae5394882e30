// tests/fuzz/job_file/job_file_fuzz.h: what must hold for any bytes taken as a job file.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::fuzz {

// Reads `text` for both purposes. Empty if all is well, else what is wrong: violations without a
// rule, a spec that does not survive writing and reading, a spec that only submit accepts.
std::string CheckJobFile(absl::string_view text);

}  // namespace phalanx::fuzz

// core/build/build_info.h: which build this is.
//
// Functions of nothing; safe to call from any thread.
#pragma once

#include "absl/strings/string_view.h"

namespace phalanx {

// "0.1.0".
absl::string_view BuildVersion();
// Of git, 12 digits, as of the last configuration of the build folder; what PHALANX_COMMIT said
// there; "unknown" where there is neither. Letters, digits and ._- alone.
absl::string_view BuildCommit();

}  // namespace phalanx

// coordinator/status/files.h: the files of coordinator/status/page, compiled in.
#pragma once

#include "absl/strings/string_view.h"

namespace phalanx::coordinator {

absl::string_view PageHtml();
absl::string_view PageCss();
absl::string_view PageJs();

}  // namespace phalanx::coordinator

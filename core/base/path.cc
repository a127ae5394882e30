#include "core/base/path.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace phalanx {

std::string ResolvePath(absl::string_view directory, absl::string_view path) {
  if (path.empty() || directory.empty() || absl::StartsWith(path, "/")) return std::string(path);
  return absl::StrCat(directory, absl::EndsWith(directory, "/") ? "" : "/", path);
}

}  // namespace phalanx

#include "core/posix/below.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace phalanx {
namespace {

absl::Status CannotFind(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " cannot be found: ", std::strerror(errno)));
}

// A folder of `below` may be a link itself: whoever named it may lay it where they like. Errors:
// InvalidArgument where nobody can say where the folder is.
absl::StatusOr<bool> LiesBelow(absl::string_view path, const std::string& folder) {
  const std::unique_ptr<char, decltype(&free)> real(realpath(folder.c_str(), nullptr), &free);
  if (real == nullptr) return CannotFind(absl::StrCat("the folder ", folder));
  const absl::string_view there = real.get();
  return path == there || absl::StartsWith(path, there == "/" ? there : absl::StrCat(there, "/"));
}

}  // namespace

absl::Status CheckBelow(int descriptor, const std::vector<std::string>& below) {
  if (below.empty()) return absl::OkStatus();
  char path[PATH_MAX];
  const std::string link = absl::StrCat("/proc/self/fd/", descriptor);
  const ssize_t bytes = readlink(link.c_str(), path, sizeof(path));
  if (bytes < 0) return CannotFind("what is open");
  const absl::string_view led(path, static_cast<size_t>(bytes));
  absl::Status unknown;  // of the first folder that is not found
  for (const std::string& folder : below) {
    const absl::StatusOr<bool> lies = LiesBelow(led, folder);
    if (lies.ok() && *lies) return absl::OkStatus();
    if (unknown.ok()) unknown = lies.status();
  }
  if (!unknown.ok())
    return absl::InvalidArgumentError(absl::StrCat("leads to ", led, "; ", unknown.message()));
  return absl::InvalidArgumentError(
      absl::StrCat("leads to ", led, "; must lead below ", absl::StrJoin(below, ", ")));
}

}  // namespace phalanx

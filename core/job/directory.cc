#include "core/job/directory.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/cut_text.h"
#include "core/base/violation.h"

namespace phalanx::job {
namespace {

constexpr size_t kBytesMax = 4096;
constexpr size_t kBytesShown = 80;

}  // namespace

// Every path of the job may start there. Clients write it without detours.
absl::Status CheckDirectory(absl::string_view directory) {
  const auto broken = [directory](std::string rule) {
    return ViolationsStatus({{.field = "document.directory",
                              .value = CutText(std::string(directory), kBytesShown),
                              .rule = std::move(rule)}});
  };
  if (!absl::StartsWith(directory, "/")) return broken("must be an absolute path");
  if (directory.size() > kBytesMax)
    return broken(absl::StrCat("may be at most ", kBytesMax, " bytes long"));
  if (std::any_of(directory.begin(), directory.end(),
                  [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    return broken("must have no control characters");
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(directory, '/');
  if (std::find(parts.begin(), parts.end(), "..") != parts.end())
    return broken("must have no '..' in it");
  return absl::OkStatus();
}

}  // namespace phalanx::job

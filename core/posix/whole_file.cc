#include "core/posix/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/posix/unique_fd.h"

namespace phalanx {
namespace {

bool WriteAndSync(const std::string& path, absl::string_view text) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) return false;
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(file.get()) == 0;
}

}  // namespace

absl::Status WriteWholeFile(const std::string& path, absl::string_view text) {
  const std::string draft = absl::StrCat(path, ".", getpid(), ".new");
  if (WriteAndSync(draft, text) && std::rename(draft.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  unlink(draft.c_str());
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

}  // namespace phalanx

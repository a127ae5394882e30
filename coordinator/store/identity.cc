#include "coordinator/store/identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

absl::Status FileError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

uint64_t Draw() {
  std::random_device device;
  uint64_t word = 0;
  while (word == 0) word = (static_cast<uint64_t>(device()) << 32) | device();
  return word;
}

// On disk when it returns.
absl::Status WriteAndSync(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return FileError("write", path);
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const absl::Status status =
      written && fsync(file) == 0 ? absl::OkStatus() : FileError("write", path);
  close(file);
  return status;
}

absl::Status SyncFolder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError("open", folder);
  const absl::Status status =
      fsync(descriptor) == 0 ? absl::OkStatus() : FileError("synchronise", folder);
  close(descriptor);
  return status;
}

}  // namespace

absl::StatusOr<uint64_t> StoreIdentity(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/identity");
  if (std::ifstream file(path); file) {
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    uint64_t identity = 0;
    if (text.size() != 17 || !absl::SimpleHexAtoi(absl::StripSuffix(text, "\n"), &identity) ||
        identity == 0) {
      return absl::DataLossError(
          absl::StrCat(path, " holds no identity; bring it back from where the store came from"));
    }
    return identity;
  }
  if (errno != ENOENT) return FileError("read", path);
  const uint64_t identity = Draw();
  const std::string aside = absl::StrCat(path, ".new");
  RETURN_IF_ERROR(WriteAndSync(aside, absl::StrCat(absl::Hex(identity, absl::kZeroPad16), "\n")));
  if (std::rename(aside.c_str(), path.c_str()) != 0) return FileError("rename to", path);
  RETURN_IF_ERROR(SyncFolder(folder));
  return identity;
}

}  // namespace phalanx::coordinator

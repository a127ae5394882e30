#include "worker/comm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace phalanx::comm {
namespace {

char* Map(int descriptor, uint64_t bytes) {
  void* mapping =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  return mapping == MAP_FAILED ? nullptr : static_cast<char*>(mapping);
}

uint64_t NonceOf(const char* mapping) {
  uint64_t nonce = 0;
  std::memcpy(&nonce, mapping, sizeof(nonce));
  return nonce;
}

}  // namespace

absl::StatusOr<SharedSegment> SharedSegment::Create(uint64_t bytes) {
  bytes += kHeadBytes;
  const int descriptor = memfd_create("phalanx-rank", MFD_CLOEXEC);
  char* mapping = nullptr;
  if (descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(bytes)) == 0)
    mapping = Map(descriptor, bytes);
  if (mapping == nullptr) {
    const int error = errno;
    if (descriptor >= 0) close(descriptor);
    return absl::UnavailableError(absl::StrCat("shared memory: ", strerror(error)));
  }
  std::random_device random;
  const uint64_t nonce = static_cast<uint64_t>(random()) << 32 | random();
  std::memcpy(mapping, &nonce, sizeof(nonce));
  return SharedSegment(mapping, bytes, descriptor, nonce);
}

std::optional<SharedSegment> SharedSegment::Attach(absl::string_view handle, uint64_t bytes) {
  bytes += kHeadBytes;
  const std::vector<absl::string_view> parts = absl::StrSplit(handle, ' ');
  int64_t process = 0, descriptor = 0;
  uint64_t nonce = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &process) ||
      !absl::SimpleAtoi(parts[1], &descriptor) || !absl::SimpleAtoi(parts[2], &nonce)) {
    return std::nullopt;
  }
  // In another container the number may be another process, and its descriptor anything at all.
  const std::string path = absl::StrCat("/proc/", process, "/fd/", descriptor);
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return std::nullopt;
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) return std::nullopt;
  char* mapping = nullptr;
  if (fstat(opened, &file) == 0 && S_ISREG(file.st_mode) &&
      static_cast<uint64_t>(file.st_size) == bytes) {
    mapping = Map(opened, bytes);
  }
  close(opened);
  if (mapping == nullptr) return std::nullopt;
  SharedSegment segment(mapping, bytes, -1, nonce);
  if (NonceOf(mapping) != nonce) return std::nullopt;
  return segment;
}

SharedSegment::~SharedSegment() {
  Close();
  if (mapping_ != nullptr) munmap(mapping_, bytes_);
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      bytes_(other.bytes_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      nonce_(other.nonce_) {}

std::string SharedSegment::Handle() const {
  return absl::StrCat(getpid(), " ", descriptor_, " ", nonce_);
}

void SharedSegment::Close() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

}  // namespace phalanx::comm

#include "worker/checkpoint/copy_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/checkpoint_io/host_buffer.h"
#include "core/posix/unique_fd.h"

namespace phalanx::checkpoint {
namespace {

using std::chrono::steady_clock;

constexpr int kLookMilliseconds = 50;  // whether to stop
constexpr size_t kAtOnceBytes = size_t{4} << 20;
using Page = std::array<std::byte, static_cast<size_t>(kHostCopyPage)>;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Until something can be read or written, or the connection is broken.
absl::Status Await(int fd, short events, steady_clock::time_point deadline,
                   const std::stop_token& stop) {
  while (true) {
    if (stop.stop_requested()) return absl::CancelledError("asked to stop");
    pollfd polled{fd, events, 0};
    if (poll(&polled, 1, kLookMilliseconds) > 0) return absl::OkStatus();
    if (steady_clock::now() >= deadline)
      return absl::DeadlineExceededError("nothing comes or goes at the other end");
  }
}

steady_clock::time_point After(absl::Duration patience) {
  return steady_clock::now() + absl::ToChronoNanoseconds(patience);
}

absl::Status Broke(int error) {
  return absl::UnavailableError(
      absl::StrCat("the connection broke: ", error == 0 ? "closed" : strerror(error)));
}

absl::Status Send(int fd, absl::Span<const std::byte> bytes, const CopyLinkOptions& options) {
  while (!bytes.empty()) {
    RETURN_IF_ERROR(Await(fd, POLLOUT, After(options.silence_max), options.stop));
    const ssize_t sent =
        send(fd, bytes.data(), std::min(bytes.size(), kAtOnceBytes), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && WouldBlock()) continue;
    if (sent <= 0) return Broke(errno);
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

// How many bytes came before the other end closed the connection: all, or fewer.
absl::StatusOr<size_t> Receive(int fd, absl::Span<std::byte> bytes, absl::Duration patience,
                               const CopyLinkOptions& options) {
  size_t count = 0;
  while (count < bytes.size()) {
    RETURN_IF_ERROR(
        Await(fd, POLLIN, After(count == 0 ? patience : options.silence_max), options.stop));
    const ssize_t received =
        recv(fd, bytes.data() + count, std::min(bytes.size() - count, kAtOnceBytes), MSG_DONTWAIT);
    if (received < 0 && WouldBlock()) continue;
    if (received < 0) return Broke(errno);
    if (received == 0) break;
    count += static_cast<size_t>(received);
  }
  return count;
}

absl::Status ReceiveAll(int fd, absl::Span<std::byte> bytes, const CopyLinkOptions& options) {
  ASSIGN_OR_RETURN(const size_t count, Receive(fd, bytes, options.silence_max, options));
  return count == bytes.size() ? absl::OkStatus() : Broke(0);
}

// The lowest byte first.
template <typename T>
std::array<std::byte, sizeof(T)> ToBytes(T value) {
  std::array<std::byte, sizeof(T)> bytes;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((static_cast<uint64_t>(value) >> (8 * i)) & 0xff);
  return bytes;
}
template <typename T>
T FromBytes(const std::array<std::byte, sizeof(T)>& bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return static_cast<T>(value);
}

absl::Status Give(int fd, int64_t step, const HostCopyPair* pair, const CopyLinkOptions& options) {
  absl::StatusOr<HostCopyPair::Buffer> buffer = absl::NotFoundError("");
  if (pair != nullptr) buffer = pair->BufferOf(step);
  if (!buffer.ok()) return Send(fd, ToBytes<int64_t>(0), options);
  const int64_t bytes = kHostCopyPage + buffer->header.bytes;
  RETURN_IF_ERROR(Send(fd, ToBytes(bytes), options));
  RETURN_IF_ERROR(Send(fd, {buffer->memory, static_cast<size_t>(bytes)}, options));
  return Send(fd, {buffer->memory, static_cast<size_t>(kHostCopyPage)}, options);
}

struct UnmapWhole {
  size_t bytes;
  void operator()(std::byte* memory) const { munmap(memory, bytes); }
};

}  // namespace

absl::Status GiveCopies(int fd, int64_t step, const std::function<const HostCopyPair*(Rank)>& find,
                        const CopyLinkOptions& options) {
  while (true) {
    std::array<std::byte, sizeof(int32_t)> asked;
    ASSIGN_OR_RETURN(const size_t count,
                     Receive(fd, absl::MakeSpan(asked), options.turn_max, options));
    if (count == 0) return absl::OkStatus();
    if (count < asked.size()) return Broke(0);
    RETURN_IF_ERROR(Give(fd, step, find(Rank{FromBytes<int32_t>(asked)}), options));
  }
}

absl::StatusOr<std::optional<HostCopyPair>> TakeCopy(int fd, const HostCopyPair::Identity& whose,
                                                     int64_t bytes_max,
                                                     const CopyLinkOptions& options) {
  RETURN_IF_ERROR(Send(fd, ToBytes(whose.rank.value), options));
  std::array<std::byte, sizeof(int64_t)> length;
  RETURN_IF_ERROR(ReceiveAll(fd, absl::MakeSpan(length), options));
  const auto bytes = FromBytes<int64_t>(length);
  if (bytes == 0) return std::nullopt;
  if (bytes < kHostCopyPage || bytes > bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("a copy of the state of rank ", whose.rank.value,
                                                   " of ", bytes, " bytes; it has at most ",
                                                   bytes_max));
  }
  Page page;
  RETURN_IF_ERROR(ReceiveAll(fd, absl::MakeSpan(page), options));
  const auto header = HeaderOnPage(page, bytes);
  if (!header.ok() || header->bytes != bytes - kHostCopyPage) {
    return absl::DataLossError(
        absl::StrCat("what was sent of the state of rank ", whose.rank.value, " is no whole copy"));
  }
  if (const int64_t available = options.available(); available > 0 && bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a copy of the state of rank ", whose.rank.value, " has ", bytes,
                     " bytes; this node has ", available, " available"));
  }
  const auto size = static_cast<size_t>(bytes);
  UniqueFd file(memfd_create("phalanx-inherited", MFD_CLOEXEC));
  void* mapped = MAP_FAILED;
  if (file.is_open() && ftruncate(file.get(), bytes) == 0)
    mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a copy of the state of rank ",
                                                     whose.rank.value, " of ", bytes,
                                                     " bytes: ", strerror(errno)));
  }
  const std::unique_ptr<std::byte, UnmapWhole> memory(static_cast<std::byte*>(mapped),
                                                      UnmapWhole{size});
  std::memcpy(memory.get(), page.data(), page.size());
  RETURN_IF_ERROR(ReceiveAll(fd, {memory.get() + page.size(), size - page.size()}, options));
  Page then;
  RETURN_IF_ERROR(ReceiveAll(fd, absl::MakeSpan(then), options));
  if (then != page) {
    return absl::DataLossError(
        absl::StrCat("somebody has written to the copy of the state of rank ", whose.rank.value));
  }
  UniqueFd again(fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  if (!again.is_open()) {
    return absl::ResourceExhaustedError(absl::StrCat("no file descriptor left: ", strerror(errno)));
  }
  ASSIGN_OR_RETURN(HostCopyPair pair,
                   HostCopyPair::Map(whose, bytes, {std::move(file), std::move(again)}));
  return std::optional<HostCopyPair>(std::move(pair));
}

}  // namespace phalanx::checkpoint

#include "worker/channel/frame_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace phalanx::channel {
namespace {

// Of a clock that nobody sets.
absl::Time Now() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

constexpr size_t kHeaderBytes = 4;
constexpr size_t kReadBytes = 64 << 10;

uint32_t LengthAt(const char* bytes) {
  const auto* b = reinterpret_cast<const unsigned char*>(bytes);
  return static_cast<uint32_t>(b[0]) | static_cast<uint32_t>(b[1]) << 8 |
         static_cast<uint32_t>(b[2]) << 16 | static_cast<uint32_t>(b[3]) << 24;
}

absl::Status Gone(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("rank channel: ", what));
}

// Waits until `fd` allows `events`, or is broken. Errors: DeadlineExceeded.
absl::Status WaitFor(int fd, short events, absl::Time deadline) {
  while (true) {
    int milliseconds = -1;
    if (deadline != absl::InfiniteFuture()) {
      const int64_t left = absl::ToInt64Milliseconds(deadline - Now()) + 1;
      milliseconds = static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
    }
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, milliseconds);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Gone(strerror(errno));
    if (ready == 0 && Now() >= deadline) {
      return absl::DeadlineExceededError("rank channel: the other end did not answer in time");
    }
  }
}

// As recv() of what is there; what descriptors came with it go to `descriptors`.
ssize_t ReceiveSome(int fd, char* bytes, size_t size, std::vector<UniqueFd>* descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  iovec into{bytes, size};
  msghdr message{};
  message.msg_iov = &into;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&message); entry != nullptr;
       entry = CMSG_NXTHDR(&message, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(entry) + i * sizeof(int), sizeof descriptor);
      descriptors->emplace_back(descriptor);
    }
  }
  return n;
}

}  // namespace

ssize_t SendSome(int fd, absl::string_view bytes, absl::Span<const int> descriptors) {
  if (descriptors.empty()) return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))] = {};
  iovec from{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &from;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* entry = CMSG_FIRSTHDR(&message);
  entry->cmsg_level = SOL_SOCKET;
  entry->cmsg_type = SCM_RIGHTS;
  entry->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(entry), descriptors.data(), descriptors.size() * sizeof(int));
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

absl::Status AppendFrame(const google::protobuf::MessageLite& message, std::string* out) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes > kFrameBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", bytes, " bytes exceeds the ", kFrameBytesMax, " of a frame"));
  }
  const auto length = static_cast<uint32_t>(bytes);
  for (int shift = 0; shift < 32; shift += 8) {
    out->push_back(static_cast<char>((length >> shift) & 0xFF));
  }
  message.AppendToString(out);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> FrameDecoder::Next() {
  const size_t available = buffer_.size() - begin_;
  if (available < kHeaderBytes) return std::nullopt;
  const uint32_t length = LengthAt(buffer_.data() + begin_);
  if (length > kFrameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank channel: a frame of ", length, " bytes exceeds ", kFrameBytesMax));
  }
  if (available < kHeaderBytes + length) return std::nullopt;
  std::string frame = buffer_.substr(begin_ + kHeaderBytes, length);
  begin_ += kHeaderBytes + length;
  // Moving the rest to the front now and then keeps the cost linear and the buffer small.
  if (begin_ == buffer_.size() || begin_ >= kReadBytes) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  return frame;
}

FrameSocket::FrameSocket(int fd) : fd_(fd) { fcntl(fd_, F_SETFD, FD_CLOEXEC); }

FrameSocket::~FrameSocket() { close(fd_); }

std::vector<UniqueFd> FrameSocket::TakeDescriptors(size_t count) {
  const auto end =
      descriptors_.begin() + static_cast<std::ptrdiff_t>(std::min(count, descriptors_.size()));
  std::vector<UniqueFd> taken(std::make_move_iterator(descriptors_.begin()),
                              std::make_move_iterator(end));
  descriptors_.erase(descriptors_.begin(), end);
  return taken;
}

void FrameSocket::Shutdown() { shutdown(fd_, SHUT_RDWR); }

absl::Status FrameSocket::Send(const google::protobuf::MessageLite& message,
                               absl::Duration timeout) {
  const absl::Time deadline = Now() + timeout;
  std::string frame;
  if (absl::Status framed = AppendFrame(message, &frame); !framed.ok()) return framed;
  MutexLock lock(&send_mutex_);
  if (send_broken_) return Gone("an earlier message was cut short");
  size_t sent = 0;
  while (sent < frame.size()) {
    const ssize_t n =
        send(fd_, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (absl::Status waited = WaitFor(fd_, POLLOUT, deadline); !waited.ok()) {
        send_broken_ = sent > 0;
        return waited;
      }
    } else if (n == 0 || errno != EINTR) {
      send_broken_ = true;
      return Gone(n == 0 ? "closed" : strerror(errno));
    }
  }
  return absl::OkStatus();
}

absl::Status FrameSocket::Receive(google::protobuf::MessageLite* message, absl::Duration timeout) {
  const absl::Time deadline = Now() + timeout;
  char bytes[kReadBytes];
  while (true) {
    absl::StatusOr<std::optional<std::string>> frame = decoder_.Next();
    if (!frame.ok()) return frame.status();
    if (frame->has_value()) {
      if (message->ParseFromString(**frame)) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("rank channel: a frame is no ", message->GetTypeName()));
    }
    const ssize_t n = ReceiveSome(fd_, bytes, sizeof(bytes), &descriptors_);
    if (n > 0) {
      decoder_.Append({bytes, static_cast<size_t>(n)});
    } else if (n == 0) {
      return Gone("closed by the other end");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (absl::Status waited = WaitFor(fd_, POLLIN, deadline); !waited.ok()) return waited;
    } else if (errno != EINTR) {
      return Gone(strerror(errno));
    }
  }
}

}  // namespace phalanx::channel

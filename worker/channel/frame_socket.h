// worker/channel/frame_socket.h: messages on a local stream socket, between a daemon and its ranks.
//
// A frame is a 4-byte little-endian length, at most kFrameBytesMax, and that many bytes of one
// protobuf message. proto/phalanx/v1/rank.proto says which messages travel: the daemon sends
// ToRank, the rank ToDaemon. No gRPC here: the rank process links this and LibTorch, never gRPC.
//
// The rank's end is file descriptor kRankChannelFd. A rank reads it with
//   FrameSocket channel(kRankChannelFd);
//   ToRank message;
//   absl::Status received = channel.Receive(&message, absl::InfiniteDuration());
// and takes Unavailable, the daemon's end is gone, as an order to end.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/posix/unique_fd.h"
#include "google/protobuf/message_lite.h"

namespace phalanx::channel {

inline constexpr uint32_t kFrameBytesMax = 16u << 20;
inline constexpr int kRankChannelFd = 3;

// Appends the frame of `message` to `out`. Errors: ResourceExhausted if it is too large; `out` is
// then as it was.
absl::Status AppendFrame(const google::protobuf::MessageLite& message, std::string* out);

// Writes some of `bytes`, at least one if the socket takes any, and lets `descriptors`, at most
// kDescriptorsMax, travel with the first of them. As send(): never waits; -1 with errno.
inline constexpr size_t kDescriptorsMax = 8;
ssize_t SendSome(int fd, absl::string_view bytes, absl::Span<const int> descriptors);

// Cuts a byte stream into frames. Not thread-safe.
class FrameDecoder {
 public:
  void Append(absl::string_view bytes) { buffer_.append(bytes.data(), bytes.size()); }
  // The next whole frame without its length; nullopt: more bytes are needed. Errors:
  // InvalidArgument if a length exceeds kFrameBytesMax; the stream is then of no more use.
  absl::StatusOr<std::optional<std::string>> Next();

 private:
  std::string buffer_;
  size_t begin_ = 0;  // of the next frame in buffer_
};

// A blocking end of the channel; owns the descriptor. Send is thread-safe; one thread at a time
// receives; Shutdown may be called from any thread.
//
// Errors of both directions: Unavailable (the other end is gone, or Shutdown was called),
// DeadlineExceeded.
class FrameSocket {
 public:
  explicit FrameSocket(int fd);
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;

  int fd() const { return fd_; }

  // Returns when the whole frame is with the kernel. A frame cut short by its deadline leaves the
  // stream useless: every later Send fails with Unavailable. Errors: ResourceExhausted if the
  // message is too large.
  absl::Status Send(const google::protobuf::MessageLite& message, absl::Duration timeout);

  // Waits for one message. More may have been read with it than the socket now shows: who polls
  // fd() calls this with no time to wait until it has nothing more. After DeadlineExceeded the call
  // may be repeated: nothing is lost. Errors: InvalidArgument if the frame is too large or is no
  // message of this type.
  absl::Status Receive(google::protobuf::MessageLite* message, absl::Duration timeout);

  // Descriptors that came with what has been received so far and were not taken yet, oldest first.
  // What is read of the socket at once may be a frame without any and the next one with its own:
  // so whoever knows how many belong to a frame takes so many, at most `count`. Of the receiving
  // thread.
  std::vector<UniqueFd> TakeDescriptors(size_t count = SIZE_MAX);

  // Wakes every wait at both ends; later calls fail with Unavailable.
  void Shutdown();

 private:
  const int fd_;
  FrameDecoder decoder_;  // owned by the receiving thread, as the next
  std::vector<UniqueFd> descriptors_;
  Mutex send_mutex_;
  bool send_broken_ ABSL_GUARDED_BY(send_mutex_) = false;
};

}  // namespace phalanx::channel

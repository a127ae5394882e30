// worker/train/message_stream.h: the messages of one direction, beside the passes.
//
// On CUDA a message waits for what it needs and for nothing else (core/schedule/program.h): a send
// for its own pass, a receive only for memory. So messages have a stream of their own, on which
// their memory is allocated too. A tensor that both streams use is marked with the one it was not
// made on, and its memory is free once both are past their last use of it. On CPU a receive is
// complete when the call returns, and what is sent is kept until Finish().
//
// Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "worker/comm/communicator.h"

namespace phalanx::train {

// A point in the work of a stream. On CPU, where all work before it is done, it is nothing.
class Moment {
 public:
  Moment() = default;
  // What the current stream of the device has been given so far.
  static Moment Now(at::Device device);
  // The current stream waits for it.
  void Await() const;

 private:
  std::shared_ptr<c10::Event> event_;
};

// A stream for messages; none on CPU. Memory that was allocated on it is kept for it, so a process
// takes it once.
std::optional<c10::Stream> NewStream(at::Device device);

// The current stream uses a tensor that was made on another one.
void UseHere(const at::Tensor& tensor);

class MessageStream {
 public:
  // `communicator`: nullptr where this rank has nobody to talk to. `stream`: none on CPU.
  MessageStream(comm::Communicator* communicator, at::Device device,
                std::optional<c10::Stream> stream);

  // Memory for a message that is to come.
  at::Tensor Buffer(at::IntArrayRef shape, at::ScalarType type) const;

  struct Message {
    int32_t peer = 0;  // rank of the communicator
    at::Tensor tensor;
  };
  // What one call of the communicator carries.
  struct Posting {
    std::vector<Message> sends, receives;
    std::vector<Moment> needs;  // of the sends
    bool empty() const { return sends.empty() && receives.empty(); }
  };
  // Enqueues it; returns the moment from which on everything received is there.
  absl::StatusOr<Moment> Exchange(Posting posting);
  // At the end of a program.
  absl::Status Finish();

 private:
  comm::Communicator* communicator_;
  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::vector<at::Tensor> sent_;
};

}  // namespace phalanx::train

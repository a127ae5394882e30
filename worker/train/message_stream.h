// worker/train/message_stream.h: the messages of one direction, beside the passes.
//
// On CUDA a message waits for what it needs and for nothing else (core/schedule/program.h): a send
// for its own pass, a receive for nothing. So messages have a stream of their own, on which the
// memory of receives is allocated too. Memory that a stream uses beside the one it was made on is
// held here until that stream is past its last use: what is sent until it has left, what is
// received until nobody names it any more and the passes that did are done. LibTorch would do the
// same when a tensor goes (record_stream), but throws there if the device has failed, where nothing
// may. On CPU a receive is complete when the call returns, and what is sent goes once it is taken.
//
// Not thread-safe. The current stream of the caller is that of the passes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"

namespace phalanx::train {

// A point in the work of a stream. On CPU, where all work before it is done, it is nothing.
class Moment {
 public:
  Moment() = default;
  // What the current stream of the device has been given so far.
  static Moment Now(at::Device device);
  // The current stream waits for it.
  void Await() const;
  // Whether the device is past it.
  bool Passed() const;

 private:
  std::shared_ptr<c10::Event> event_;
};

// A stream for messages, of `device`, which is current; none on CPU. Memory that was allocated on
// it is kept for it, so a process takes it once.
device::OwnedStream TakeStream(at::Device device,
                               device::StreamPriority priority = device::StreamPriority::kFirst);

// Whether anybody beside the caller's one handle names the memory: a copy of the handle, or a view.
bool IsNamedElsewhere(const at::Tensor& tensor);

// Memory that is let go once the device is past a moment. It goes in the order in which it came.
// Bounded by what a host that looks in between can have enqueued.
class HeldMemory {
 public:
  void Hold(std::vector<at::Tensor> tensors, Moment until);
  void LetGo();

 private:
  struct Entry {
    std::vector<at::Tensor> tensors;
    Moment until;
  };
  std::deque<Entry> entries_;
};

class MessageStream {
 public:
  // `communicator`: nullptr where this rank has nobody to talk to. `stream`: none on CPU.
  MessageStream(comm::Communicator* communicator, at::Device device,
                std::optional<c10::Stream> stream);

  // Memory for a message that is to come.
  at::Tensor Buffer(at::IntArrayRef shape, at::ScalarType type);

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
  // As Exchange() with nobody there: nothing is sent, and zeros arrive.
  Moment ExchangeWithNobody(Posting posting);
  // At the end of a program.
  absl::Status Finish();

 private:
  // Lets go of memory that nothing uses any more.
  void Collect();

  comm::Communicator* communicator_;
  at::Device device_;
  std::optional<c10::Stream> stream_;
  // With a stream only.
  std::vector<at::Tensor> buffers_;  // that passes may name
  HeldMemory sent_, received_;
};

}  // namespace phalanx::train

// worker/train/messages_ahead.h: which messages the host enqueues while it waits with a pass.
//
// A host that waits for room (run_ahead.h) with messages behind it keeps peers waiting for them,
// who may be those it waits for. So where its device stands still it goes on with messages, those
// of a direction in the order of the program: sends of which the pass is enqueued, and one receive
// at a time, until it has come, so that no more memory waits than what peers have sent. The checker
// holds every program to this (core/schedule/execution.h, kPaced). Not sooner: a kernel that is
// loaded meanwhile waits for all that the device has, such a receive too.
//
// Pure. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "worker/train/bound_program.h"

namespace phalanx::train {

class MessagesAhead {
 public:
  MessagesAhead() = default;
  // `program` outlives it.
  explicit MessagesAhead(absl::Span<const BoundInstruction> program);

  // A run of the program begins.
  void Begin() { next_ = {}; }
  // The exchange of one direction that may be enqueued next, by its first instruction, while the
  // host is at the pass program[at]. `arrived`: whether what was received before its turn has come.
  std::optional<size_t> Next(bool forward, size_t at, bool arrived) const;
  // The next exchange of its direction is enqueued, in its turn or before.
  void Advance(bool forward) { ++next_[forward]; }
  // Whether the exchange of a direction that begins at program[at] is enqueued.
  bool IsEnqueued(bool forward, size_t at) const;

 private:
  absl::Span<const BoundInstruction> program_;
  std::array<std::vector<size_t>, 2> exchanges_;  // backward, forward: their first instructions
  std::array<size_t, 2> next_ = {};
};

}  // namespace phalanx::train

// worker/checkpoint/snapshot.h: a copy of what a rank writes of its state, made beside the
// training.
//
// Between its update of one step and that of the next a bucket's state does not change. So the copy
// is begun when the step is decided, follows the updates bucket by bucket in their order, and the
// next update of each waits for what is copied of it (TrainingState::HoldState): beside a GPU a
// copy may take as long as a step, and holds up no update before its own bucket's. The memory,
// pinned there, is taken once; what does not train is copied once.
//
// Begin belongs to the thread that trains; Ready, Await and what they speak of to one other.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <map>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/checkpoint_io/part_writer.h"
#include "core/plan/plan.h"
#include "worker/checkpoint/pinned_mapping.h"
#include "worker/checkpoint/sections.h"
#include "worker/device/cuda_device.h"
#include "worker/train/message_stream.h"
#include "worker/train/training_state.h"

namespace phalanx::checkpoint {

class Snapshot {
 public:
  // `state` outlives it. Errors: ResourceExhausted if the host has not the memory.
  static absl::StatusOr<std::unique_ptr<Snapshot>> Create(const plan::Plan& plan,
                                                          train::TrainingState& state);
  // Into memory of at least BytesNeeded, ready; nullptr: that is none.
  static std::unique_ptr<Snapshot> Create(const plan::Plan& plan, train::TrainingState& state,
                                          std::unique_ptr<PinnedMapping> memory);
  static int64_t BytesNeeded(const plan::Plan& plan, train::TrainingState& state);
  // The snapshot ends; what was its memory, if it had some of its own.
  static std::unique_ptr<PinnedMapping> TakeMemory(std::unique_ptr<Snapshot> snapshot);
  // Into BytesOf(sections) of a mapping from `offset` on, a multiple of 64. It is ready, and
  // outlives the snapshot.
  static std::unique_ptr<Snapshot> Into(PinnedMapping& mapping, int64_t offset,
                                        train::TrainingState& state, std::vector<Section> sections);
  static int64_t BytesOf(const std::vector<Section>& sections);
  ~Snapshot();

  // Nothing is begun any more, and the state may go. What was copied stays in the memory.
  void Detach();

  // Copies the state of the last decided step. The copy before is of no use any more. Nothing of
  // the next update is enqueued yet.
  absl::Status Begin();

  // Waits until the copy that was begun last is complete. Errors: Cancelled when asked to stop;
  // what the device says.
  absl::Status Await(const std::stop_token& stop);
  // Whether that copy is complete, of the thread that trains. Never blocks. Errors: what it failed
  // of.
  absl::StatusOr<bool> Done();
  // What goes into the part file, from the copy's memory. Nothing: the rank writes no part.
  PartWrite Entries() const;
  int64_t bytes() const;

 private:
  struct Copied {
    Section section;
    at::Tensor array;
  };
  // What is copied of one block, or one part's weights that do not train.
  struct Turn {
    const train::PartState* part = nullptr;
    const train::StateBlock* block = nullptr;  // nullptr: of what does not train
    std::vector<Copied*> copies;
  };

  Snapshot(train::TrainingState& state, std::vector<Section> sections);
  void Place(PinnedMapping& mapping, int64_t offset);
  static bool IsOfFrozen(const Turn& turn) { return turn.block == nullptr; }
  void TakeTurns();
  void CopyTurn(const Turn& turn);
  absl::Status Enqueue();
  void AwaitTurn(const train::StateBlock* block);
  void AwaitCopy();

  // Constant after Create.
  train::TrainingState* state_;            // until Detach
  std::unique_ptr<PinnedMapping> memory_;  // its own; nullptr: none
  std::byte* grid_ = nullptr;              // where the mapping begins that it copies to
  std::vector<Copied> copies_;
  device::OwnedStream stream_;  // none on CPU
  // In the order of updates; what does not train last, until it is copied. Of the thread that
  // copies: on CPU the copier, beside a GPU the one that trains.
  std::vector<Turn> turns_;
  // With a stream: of the copy that was begun last, what no update has waited for yet.
  std::map<const train::StateBlock*, train::Moment> copied_turns_;
  Mutex mu_;
  CondVar complete_changed_;
  bool complete_ ABSL_GUARDED_BY(mu_) = true;  // on CPU
  train::Moment copied_ ABSL_GUARDED_BY(mu_);  // with a stream
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  // Last: ends before what it reads. On CPU it copies.
  std::jthread copier_;
};

}  // namespace phalanx::checkpoint

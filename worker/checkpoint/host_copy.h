// worker/checkpoint/host_copy.h: the second home of optimizer state in memory of the node's daemon.
//
// The daemon gives a rank two buffers (worker/agent/host_memory.h), which outlive its process and
// its device. Every `recovery.state_every` steps the rank copies there what it is the primary home
// of, as snapshot.h does, into the buffer that does not have its newest whole copy. Records say the
// step of that (commit.h); the other buffer is written again only once all ranks have copies of it
// or of later ones, so that there is always a step of which all have one.
//
// Behind the header of a buffer (core/checkpoint_io/host_buffer.h) are the sections in the order of
// SectionsInHostMemory, each at a 64-byte boundary.
//
// Of the thread that trains.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/checkpoint_io/host_buffer.h"
#include "core/plan/plan.h"
#include "core/posix/unique_fd.h"
#include "worker/checkpoint/pinning_thread.h"
#include "worker/checkpoint/sections.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/train/training_state.h"

namespace phalanx::checkpoint {

// What of the rank's state goes to host memory: masters and moments of the homes whose primary it
// is, if anything of the plan's does (plan::CopiesToHost).
std::vector<Section> SectionsInHostMemory(const plan::Plan& plan, train::TrainingState& state);

class HostCopy {
 public:
  struct Identity {
    uint64_t store = 0;
    int64_t job = 0;
    Rank rank;
  };

  // Of one buffer; 0: nothing of the rank's state belongs there.
  static int64_t BytesNeeded(const plan::Plan& plan, train::TrainingState& state);
  // `buffers`: of BytesNeeded each, ready; what they hold of steps before is not looked at. `state`
  // outlives it.
  static std::unique_ptr<HostCopy> Create(const plan::Plan& plan, train::TrainingState& state,
                                          const Identity& identity, Mappings buffers);
  // The same of files. Errors: ResourceExhausted if they cannot be mapped, or pinned beside a GPU.
  static absl::StatusOr<std::unique_ptr<HostCopy>> Create(const plan::Plan& plan,
                                                          train::TrainingState& state,
                                                          const Identity& identity,
                                                          std::array<UniqueFd, 2> buffers);
  ~HostCopy();
  // The copy ends; what was its memory.
  static Mappings TakeMemory(std::unique_ptr<HostCopy> copy);

  // From now on the state says of what step it has a copy.
  void Use();
  // The step that the state has decided last is settled, in `epoch`, and nothing that changes the
  // state further is enqueued: begins its copy if it is due and there is room. Errors: what the
  // copy before failed of; there is none of its step then.
  absl::Status AfterStep(Epoch epoch);
  // Of the newest whole copy; 0: there is none.
  int64_t copied();

 private:
  // Looks whether the copy under way is whole.
  void Look();

  struct Buffer {
    std::unique_ptr<PinnedMapping> mapping;
    int64_t step = 0;                    // of its whole copy; 0: it has none
    std::unique_ptr<Snapshot> snapshot;  // into the mapping
    std::byte* memory() const { return mapping->data(); }
  };

  HostCopy(const plan::Plan& plan, train::TrainingState& state, const Identity& identity,
           int64_t bytes);

  train::TrainingState& state_;
  const Identity identity_;
  const int64_t every_;
  const uint64_t plan_;
  const int64_t bytes_;
  std::array<Buffer, 2> buffers_;
  bool used_ = false;
  int32_t under_way_ = -1;  // buffer; -1: none
  absl::Status failed_;     // of the last copy that was under way
  HostCopyHeader next_;     // of the copy under way
};

}  // namespace phalanx::checkpoint

// worker/checkpoint/pinning_thread.h: makes and lets go pinned memory beside training.
//
// A thread of its own, for as long as the process lives. After each piece it pauses for as long as
// pinning that took, so that kernels are launched in between; while it is held (Hold) it begins no
// piece: from the end of an epoch to the first step of the next nobody waits for more than the one
// that was begun.
//
// Memory that is given back, or not wanted any more before it was ready, is kept as it is: who
// wants the same again has it without pinning. It goes when other memory is wanted for that use;
// second homes stay, since copies in them may still be needed, until they are dropped. What goes,
// goes behind a second home that is to be made, but where somebody asks for its room, and before
// anything else: what a process has pinned is bounded by two epochs, and its end takes the driver
// no longer than that. While it takes memory apart, others on the node wait for it.
//
// Thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/posix/unique_fd.h"
#include "worker/checkpoint/pinned_mapping.h"

namespace phalanx::checkpoint {

using Mappings = std::vector<std::unique_ptr<PinnedMapping>>;

class PinningThread {
 public:
  // kOthers: copies of ranks whose state this one would take over.
  enum class Use : uint8_t { kSecondHome, kCheckpoint, kOthers };
  // Each of `fds`, of `bytes`, or of the file's size (0); none: memory of no file.
  struct Wanted {
    std::vector<UniqueFd> fds;
    int64_t bytes = 0;
  };

  explicit PinningThread(Pinning pinning);
  // What it has goes, without pauses.
  ~PinningThread();
  const Pinning& pinning() const { return pinning_; }

  // Begins to make what is wanted; what was wanted for this use before is not any more.
  void Make(Use use, Wanted wanted);
  bool making(Use use) const;
  // What Make has made, once; nullopt: it has not yet, or nothing is wanted. Never blocks. Errors:
  // ResourceExhausted.
  std::optional<absl::StatusOr<Mappings>> Take(Use use);
  // The same, and waits for it, with no pauses and however it is held. Something must be wanted.
  absl::StatusOr<Mappings> Await(Use use);
  // What is wanted for this use is not any more. Does not wait for it.
  void Cancel(Use use);
  // Memory that Take gave is not used any more.
  void GiveBack(Use use, Mappings mappings);
  // Files that were given back and are not of `bytes` each go, and whatever else is to go. Whether
  // all of it has gone: until then it counts against what a daemon may give. Never blocks.
  bool MakeRoom(Use use, int64_t bytes);
  // What was given back for this use, and not wanted again, goes. Does not wait for it.
  void DropSpare(Use use);
  // As MakeRoom, and waits for it, as Await().
  void AwaitRoom(Use use, int64_t bytes);
  // Memory of no file that was given back, of at least so many bytes.
  std::unique_ptr<PinnedMapping> TakeBack(Use use, int64_t bytes);
  // What is mapped of the file, of whatever use, pinned in part or as a whole, among what was given
  // back or made and not taken; nullptr: nothing. It stays as long as the thread is held and
  // nothing is given back.
  const PinnedMapping* Find(int fd, int64_t bytes) const;

  // Between them no piece is begun.
  void Hold();
  void Release();

 private:
  static constexpr size_t kUses = 3;
  struct Slot {
    std::optional<Wanted> wanted;  // not yet begun
    int64_t number = 0;            // of what was wanted last
    bool wants = false;            // and still is: begun or to be begun, or made
    std::optional<absl::StatusOr<Mappings>> made;
    Mappings spare;
  };
  // What the thread does next: makes what is wanted from what there is of it, or lets it go.
  struct Task {
    std::optional<size_t> slot;
    int64_t number = 0;
    Wanted wanted;
    Mappings mappings;
  };
  using SteadyTime = std::chrono::steady_clock::time_point;

  Slot& SlotOf(Use use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return slots_[static_cast<size_t>(use)];
  }
  // Those of `spare` that are wanted, in that order; nullptr for what is not among them.
  static Mappings TakeWanted(Mappings& spare, const Wanted& wanted);
  // Among what is spare, beside what is, or instead.
  void Keep(Use use, Mappings mappings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(Mappings& mappings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropOthers(Slot& slot, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether what goes does so before what is wanted is made.
  bool GoesFirst() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Task> NextTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Work();
  absl::Status MakeAll(Task& task);
  void Finish(Task task, const absl::Status& status);
  // Behind a piece: pauses for as long as others may have waited for it, and while it is held.
  // Returns whether the task goes on.
  bool Pause(const Task& task, SteadyTime::duration locked);

  const Pinning pinning_;
  mutable Mutex mu_;
  CondVar changed_;
  std::array<Slot, kUses> slots_ ABSL_GUARDED_BY(mu_);
  Mappings dropped_ ABSL_GUARDED_BY(mu_);
  bool dropping_ ABSL_GUARDED_BY(mu_) = false;     // one of those, which is no more among them
  bool room_wanted_ ABSL_GUARDED_BY(mu_) = false;  // by who asked for room, until they have gone
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  int32_t awaited_ ABSL_GUARDED_BY(mu_) = 0;  // who waits in Await
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // from construction on; last
};

}  // namespace phalanx::checkpoint

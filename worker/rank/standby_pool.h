// worker/rank/standby_pool.h: communicators that a rank process has made for the loss of another
// rank, beside training.
//
// A set is all communicators of this rank under one layout. One is made at a time, on a thread of
// the pool; it is told of (RankStandby) once each of its communicators has been used. Sets outlive
// the epoch in which they were made, up to the assignment of the next one, which takes one of them
// or none; the others are given back in the background.
//
// On GPUs to give a set back frees memory of the device, which slows what runs there, and lasts
// longer than a recovery (docs/decisions/0030-standby.md). So behind a loss that is met with one of
// the sets the others stay, idle, where the device has memory enough without theirs, until
// communicators are made anew.
//
// Thread-safe. Nothing but Take and AwaitIdle waits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/comm/communicator.h"
#include "worker/rank/channel_rendezvous.h"
#include "worker/rank/faults.h"

namespace phalanx::rank {

class StandbyPool {
 public:
  struct Options {
    // For a set that is given up to end: NCCL takes long where peers are gone.
    absl::Duration idle_timeout = absl::Seconds(35);
    // Bytes that the thread's device has left; empty: of a GPU what it says, else not counted.
    std::function<int64_t()> memory_left;
  };
  // Channel and faults outlive it.
  StandbyPool(channel::FrameSocket& channel, Faults& faults)
      : StandbyPool(channel, faults, Options()) {}
  StandbyPool(channel::FrameSocket& channel, Faults& faults, Options options)
      : channel_(channel), faults_(faults), options_(std::move(options)) {}
  ~StandbyPool();

  // Has the set made, unless it is there or under way, in the place of another one that is being
  // made, and has that told. `of`: the epoch that the process trains in; nothing where it is
  // closed, or where the rank has no work in the layout.
  void Make(const v1::RunEpoch& of, const v1::PrepareStandby& order);
  void Deliver(const v1::Rendezvous& message);
  // What is being made for this epoch, or an earlier one, ends soon, untold; nothing more is made
  // for them. What is made stays.
  void Close(int64_t epoch);
  // All but this set go, in the background; "": all. Where memory is counted the others stay, idle,
  // as long as there is enough for the set's layout beside them.
  void KeepOnly(const std::string& set);
  // The set that the assignment names, which leaves the pool. Errors: Unavailable, of the kind
  // kPeerLost and nobody's fault, where it is not there, is of another plan, or has lost a peer.
  absl::StatusOr<comm::Communicators> Take(const v1::Assign& assign);
  // Waits until nothing is being made and what is to go has been told so: on GPUs nothing else may
  // be made before. Errors: Cancelled; DeadlineExceeded, of the kind kPeerLost: the process is
  // sound.
  absl::Status AwaitIdle(const std::stop_token& stop);

 private:
  struct Set {
    std::string name, plan_digest;
    int64_t job = 0, epoch = 0;
    int64_t memory = 0;  // bytes that the device is to have left for its layout; 0: not counted
    comm::Communicators communicators;
  };
  // What a rank has made for an order.
  struct Made {
    bool has_work = false;
    int64_t memory = 0;  // as in Set
    comm::Communicators communicators;
  };
  struct Making {
    Making(channel::FrameSocket& channel, const v1::RunEpoch& order_of,
           const v1::PrepareStandby& ordered)
        : of(order_of),
          order(ordered),
          rendezvous(channel, ordered.job(), ordered.epoch(), order_of.rank()) {}
    const v1::RunEpoch of;
    const v1::PrepareStandby order;
    ChannelRendezvous rendezvous;
    std::stop_source stop;
  };
  // Of the entries of one attempt.
  static std::string Prefix(const v1::PrepareStandby& order);
  static std::string FailedKey(const v1::PrepareStandby& order);
  static void GiveUp(Making& making, absl::Status reason);

  void Run();
  std::vector<Set>::iterator Find(const std::string& set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool UnderWay(const std::string& set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers, unless the epoch is closed meanwhile.
  void MakeSet(Making& making);
  absl::StatusOr<Made> Connect(Making& making);
  // Bytes that the current device is to have left for the order's layout. Errors:
  // ResourceExhausted if it has not, once what is being freed is, or `stop` is requested.
  absl::StatusOr<int64_t> CheckRoom(const v1::RunEpoch& of, const v1::PrepareStandby& order,
                                    const std::stop_token& stop) const;
  bool counts_memory(const v1::RunEpoch& of) const {
    return of.device_kind() == "gpu" || options_.memory_left != nullptr;
  }
  int64_t MemoryLeft() const;
  void Tell(const Making& making, const absl::Status& made);
  void Drop(std::vector<Set>::iterator set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !busy_ && wanted_ == nullptr && dropped_.empty();
  }

  channel::FrameSocket& channel_;
  Faults& faults_;
  const Options options_;
  Mutex mu_;
  CondVar changed_;
  std::shared_ptr<Making> wanted_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Making> making_ ABSL_GUARDED_BY(mu_);  // by the thread
  std::vector<Set> made_ ABSL_GUARDED_BY(mu_);
  std::vector<Set> dropped_ ABSL_GUARDED_BY(mu_);  // to be given back
  int64_t left_ ABSL_GUARDED_BY(mu_) = 0;          // of memory, beside the set made last
  int64_t closed_ ABSL_GUARDED_BY(mu_) = 0;        // the last epoch that is
  bool busy_ ABSL_GUARDED_BY(mu_) = false;         // so is the thread
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);  // from the first order on
};

}  // namespace phalanx::rank

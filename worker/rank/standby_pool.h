// worker/rank/standby_pool.h: communicators that a rank process has made for the loss of another
// rank, beside training.
//
// A set is all communicators of this rank under one layout. One is made at a time, on a thread of
// the pool; it is told of (RankStandby) once each of its communicators has been used. Sets outlive
// the epoch in which they were made, up to the assignment of the next one, which takes one of them
// or none; the others are given back in the background.
//
// Thread-safe. Nothing but Take and AwaitIdle waits.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/comm/communicator.h"
#include "worker/rank/channel_rendezvous.h"
#include "worker/rank/faults.h"

namespace phalanx::rank {

class StandbyPool {
 public:
  // Both outlive it.
  StandbyPool(channel::FrameSocket& channel, const Faults& faults)
      : channel_(channel), faults_(faults) {}
  ~StandbyPool();

  // Has the set made, unless it is there, in the place of one that is being made, and has that
  // told. `of`: the epoch that the process trains in; nothing where it is closed, or where the rank
  // has no work in the layout.
  void Make(const v1::RunEpoch& of, const v1::PrepareStandby& order);
  void Deliver(const v1::Rendezvous& message);
  // What is being made for this epoch, or an earlier one, ends soon, untold; nothing more is made
  // for them. What is made stays.
  void Close(int64_t epoch);
  // All but this set go, in the background; "": all.
  void KeepOnly(const std::string& set);
  // The set that the assignment names, which leaves the pool. Errors: Unavailable, of the kind
  // kPeerLost and nobody's fault, where it is not there, is of another plan, or has lost a peer.
  absl::StatusOr<comm::Communicators> Take(const v1::Assign& assign);
  // Waits until nothing is being made and what is to go has been told so: on GPUs nothing else may
  // be made before. Errors: Cancelled; DeadlineExceeded.
  absl::Status AwaitIdle(const std::stop_token& stop);

 private:
  struct Set {
    std::string name, plan_digest;
    int64_t job = 0, epoch = 0;
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
  static std::string FailedKey(const v1::PrepareStandby& order);
  static void GiveUp(Making& making, absl::Status reason);

  void Run();
  bool Has(const std::string& set);
  // Answers, unless the epoch is closed meanwhile.
  void MakeSet(Making& making);
  absl::StatusOr<comm::Communicators> Connect(Making& making, bool* has_work);
  static absl::Status CheckRoom(const v1::RunEpoch& of, const v1::PrepareStandby& order);
  void Tell(const Making& making, const absl::Status& made);
  void Drop(std::vector<Set>::iterator set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !busy_ && wanted_ == nullptr && dropped_.empty();
  }

  channel::FrameSocket& channel_;
  const Faults& faults_;
  Mutex mu_;
  CondVar changed_;
  std::shared_ptr<Making> wanted_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Making> making_ ABSL_GUARDED_BY(mu_);  // by the thread
  std::vector<Set> made_ ABSL_GUARDED_BY(mu_);
  std::vector<Set> dropped_ ABSL_GUARDED_BY(mu_);  // to be given back
  int64_t closed_ ABSL_GUARDED_BY(mu_) = 0;        // the last epoch that is
  bool busy_ ABSL_GUARDED_BY(mu_) = false;         // so is the thread
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);  // from the first order on
};

}  // namespace phalanx::rank

// worker/rank/channel_rendezvous.h: how ranks of an epoch find each other: entries travel to the
// daemon, from there to the coordinator and back to every rank of the epoch.
//
// Thread-safe.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/comm/communicator.h"

namespace phalanx::rank {

class ChannelRendezvous final : public comm::Rendezvous {
 public:
  ChannelRendezvous(channel::FrameSocket& channel, int64_t job, int64_t epoch, int32_t rank)
      : channel_(channel), job_(job), epoch_(epoch), rank_(rank) {}

  absl::Status Put(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, comm::Deadline deadline) override;

  // What the daemon passed on. Entries of another epoch are dropped.
  void Deliver(const v1::Rendezvous& message);
  void Abort(absl::Status reason);

 private:
  channel::FrameSocket& channel_;
  const int64_t job_, epoch_;
  const int32_t rank_;
  Mutex mu_;
  CondVar changed_;
  std::map<std::string, std::string> entries_ ABSL_GUARDED_BY(mu_);
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

// A part of another one: keys that begin with `prefix`.
class PrefixedRendezvous final : public comm::Rendezvous {
 public:
  // `whole` outlives it.
  PrefixedRendezvous(comm::Rendezvous& whole, std::string prefix)
      : whole_(whole), prefix_(std::move(prefix)) {}
  absl::Status Put(const std::string& key, const std::string& value) override {
    return whole_.Put(prefix_ + key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, comm::Deadline deadline) override {
    return whole_.Get(prefix_ + key, deadline);
  }

 private:
  comm::Rendezvous& whole_;
  const std::string prefix_;
};

}  // namespace phalanx::rank

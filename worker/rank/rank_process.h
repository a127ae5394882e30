// worker/rank/rank_process.h: the life of a rank process between its daemon's orders.
//
//   wait -> RunEpoch -> training -> StopEpoch, done or peers lost -> wait -> ... -> Quit
//
// The process outlives epochs and keeps its training state, its data and its device from one to the
// next. It ends on Quit, on SIGTERM, when the daemon is gone, or when an epoch failed for a reason
// of its own: then it has said why. Losing its peers is none.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/rank/epoch_run.h"

namespace phalanx::rank {

class RankProcess {
 public:
  explicit RankProcess(channel::FrameSocket& channel) : channel_(channel) {}

  // Returns the process's exit code: 0 after Quit, 1 after a failed epoch, 2 when the daemon is
  // gone.
  int Run();

 private:
  void ReadOrders();
  void Handle(const v1::ToRank& order);
  void TellStopped(int64_t epoch);

  channel::FrameSocket& channel_;
  Kept kept_;  // of the thread in Run()
  std::mutex mu_;
  std::condition_variable changed_;
  // Made when the order arrives, so that what follows it finds the epoch.
  std::shared_ptr<EpochRun> next_;     // guarded by mu_
  std::shared_ptr<EpochRun> current_;  // guarded by mu_
  bool quit_ = false;                  // guarded by mu_
  bool daemon_gone_ = false;           // guarded by mu_
};

}  // namespace phalanx::rank

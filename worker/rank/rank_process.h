// worker/rank/rank_process.h: the life of a rank process between its daemon's orders.
//
//   wait [-> WarmUp -> warm] -> RunEpoch -> training -> StopEpoch, done or peers lost -> wait ->
//   ... -> Quit
//
// The process outlives epochs and keeps its training state, its data and its device from one to the
// next. It ends on Quit, when the daemon is gone, when it was to give copies of state and nothing
// else (RunEpoch.keeps) and has, or when an epoch failed for a reason of its own: then it has said
// why. Losing its peers is none. A signal that ends it does so at once, so that
// its daemon sees which.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "core/base/mutex.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/rank/endings.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/faults.h"
#include "worker/rank/incident_files.h"
#include "worker/rank/standby_pool.h"

namespace phalanx::rank {

class RankProcess {
 public:
  explicit RankProcess(channel::FrameSocket& channel)
      : channel_(channel),
        faults_([this](const job::InjectedFault& fault, job::FaultPhase phase, int64_t step) {
          TellReached(fault, phase, step);
        }),
        incidents_([this](const v1::WriteIncident& order, const absl::Status& status) {
          TellNotWritten(order, status);
        }),
        standby_(channel, faults_) {}

  // Returns the process's exit code: 0 after Quit, 1 after a failed epoch, 2 when the daemon is
  // gone.
  int Run();

 private:
  void ReadOrders();
  void Handle(const v1::ToRank& order, std::vector<UniqueFd> descriptors);
  // Of communicators that are made beside training.
  void HandleStandby(const v1::ToRank& order);
  void SetNext(const v1::RunEpoch& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Once the next epoch is connected: has the current one leave, and waits until it has. One that
  // this rank has failed to connect is none to wait for.
  void LeaveFor(const EpochRun* next, bool connected);
  void TellStopped(int64_t epoch);
  void WarmUp(EpochRun& run);
  // Of epochs whose turn did not come. Waits for none but those on GPUs.
  void LetGo(std::vector<std::shared_ptr<EpochRun>> given_up);
  void TellNotWritten(const v1::WriteIncident& order, const absl::Status& status);
  // The rank has come to where it is to fail.
  void TellReached(const job::InjectedFault& fault, job::FaultPhase phase, int64_t step);

  channel::FrameSocket& channel_;
  Faults faults_;
  IncidentFiles incidents_;
  Kept kept_;  // of the thread in Run()
  StandbyPool standby_;
  Mutex mu_;
  CondVar changed_;
  // Made when the order arrives, so that what follows it finds the epoch. It may connect while the
  // current one trains, which leaves then.
  std::shared_ptr<EpochRun> next_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<EpochRun> to_warm_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<EpochRun> current_ ABSL_GUARDED_BY(mu_);
  // That ended well, until the next one begins: what it wrote may still be published.
  std::shared_ptr<EpochRun> last_ ABSL_GUARDED_BY(mu_);
  // Whose turn did not come; stopped.
  std::vector<std::shared_ptr<EpochRun>> given_up_ ABSL_GUARDED_BY(mu_);
  int64_t last_epoch_ ABSL_GUARDED_BY(mu_) = 0;  // that was run here
  bool quit_ ABSL_GUARDED_BY(mu_) = false;
  bool daemon_gone_ ABSL_GUARDED_BY(mu_) = false;
  Endings endings_;  // last: what goes there uses what is above
};

}  // namespace phalanx::rank

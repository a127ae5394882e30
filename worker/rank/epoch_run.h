// worker/rank/epoch_run.h: one epoch of one job on this process: plan, data, communicators,
// training, evaluation, reports.
//
// Run() belongs to one thread; Stop() and Deliver() may be called from another.
#pragma once

#include <atomic>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/plan/plan.h"
#include "core/schedule/simulator.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/comm/communicator.h"
#include "worker/rank/channel_rendezvous.h"
#include "worker/rank/metrics_writer.h"
#include "worker/rank/rank_figures.h"
#include "worker/train/trainer.h"

namespace phalanx::rank {

class EpochRun {
 public:
  EpochRun(channel::FrameSocket& channel, v1::RunEpoch order)
      : channel_(channel),
        order_(std::move(order)),
        rendezvous_(channel, order_.assign().job(), order_.assign().epoch(), order_.rank()) {}

  const v1::RunEpoch& order() const { return order_; }
  int64_t epoch() const { return order_.assign().epoch(); }

  // Trains to the last step. Sends every report of the epoch but the failure's.
  // Errors: Cancelled after Stop; otherwise what ends the rank.
  absl::Status Run();

  void Deliver(const v1::Rendezvous& message) { rendezvous_.Deliver(message); }
  // After Run(): gives communicators and memory back.
  void Release();
  // Ends Run() soon: every wait on a peer is woken.
  void Stop(absl::Status reason);

 private:
  absl::Status MakePlanOfOrder();
  absl::Status OpenData();
  absl::Status Connect();
  absl::Status Train();
  absl::Status Report(v1::RankReport report);
  void OnStep(const train::StepSummary& step);
  void OnTrace(const std::vector<schedule::TimedInstruction>& timeline);

  channel::FrameSocket& channel_;
  const v1::RunEpoch order_;
  ChannelRendezvous rendezvous_;
  plan::Plan plan_;
  bool reporter_ = false;
  std::unique_ptr<train::SampleSource> source_;
  std::string output_;  // absolute
  std::unique_ptr<MetricsWriter> metrics_;
  RankFigures figures_;
  const schedule::Program* program_ = nullptr;  // the trainer's, while it runs
  absl::Time progress_sent_ = absl::InfinitePast();
  absl::Status report_status_;  // the first report that could not be sent or written

  std::stop_source connecting_;  // thread-safe: ends what ranks wait for while they connect
  absl::Mutex mu_;
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);
  comm::Communicators communicators_;  // built under mu_; then the training thread's, but for Abort
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  train::Trainer* training_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace phalanx::rank

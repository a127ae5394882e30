// worker/rank/epoch_run.h: one epoch of one job on this process: plan, data, communicators,
// training, evaluation, reports.
//
// An epoch borrows what the process keeps. When it ends early its communicators are aborted, what
// the device was given is waited for, and the rank says where its state stands.
//
// Run() and WindDown() belong to one thread; Stop(), Leave(), stop_requested(), WishEnd(),
// Deliver() and Publish() may be called from another meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint_io/lock.h"
#include "core/plan/plan.h"
#include "core/posix/unique_fd.h"
#include "core/schedule/product_table.h"
#include "core/schedule/simulator.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/checkpoint/host_copy.h"
#include "worker/checkpoint/host_load.h"
#include "worker/checkpoint/pinning_thread.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/comm/communicator.h"
#include "worker/comm/releases.h"
#include "worker/data/data_set.h"
#include "worker/rank/channel_rendezvous.h"
#include "worker/rank/checkpoint_run.h"
#include "worker/rank/faults.h"
#include "worker/rank/metrics_writer.h"
#include "worker/rank/rank_figures.h"
#include "worker/rank/rank_reports.h"
#include "worker/rank/standby_pool.h"
#include "worker/rank/step_profiler.h"
#include "worker/rank/work_window.h"
#include "worker/train/mirror_fill.h"
#include "worker/train/trainer.h"
#include "worker/train/training_state.h"

namespace phalanx::rank {

// Why an epoch ends whose job goes on in a newer one.
absl::Status Replaced();

// What a rank process keeps from epoch to epoch. Owned by the thread that runs epochs.
struct Kept {
  train::StateIdentity identity;
  std::unique_ptr<train::TrainingState> training;  // nullptr: none
  int64_t epoch = 0;                               // the last one that began with it
  train::WarmPasses warm;                          // what the process has run on its device
  std::unique_ptr<plan::Plan> plan;                // whose layout it lies in, or lay in last
  // Of copies of the state; there from the first epoch on.
  std::unique_ptr<checkpoint::PinningThread> pinning;
  std::unique_ptr<checkpoint::Snapshot> snapshot;  // of `training`; nullptr: none was asked for
  // Of an epoch that ended early: writes to a disk, with memory that is used again when it has.
  struct WindingDown {
    std::unique_ptr<checkpoint::Snapshot> snapshot;  // of no state any more
    std::unique_ptr<CheckpointRun> run;
  };
  std::optional<WindingDown> winding_down;
  // Of that state; nullptr: nothing of it has its second home in host memory.
  std::unique_ptr<checkpoint::HostCopy> host_copy;
  std::string samples_of;  // what `source` reads, and how
  std::unique_ptr<train::SampleSource> source;
  std::unique_ptr<train::SampleSource> validation;  // nullptr: the job has none
  std::unique_ptr<data::Tokenizer> tokenizer;       // of the validation's captions
  // "STORE/job-N FOLDER": the job that this process has written lines of, and where; empty: none.
  std::string lines;
};

class EpochRun {
 public:
  // `kept`, `faults` and `standby` outlive it.
  EpochRun(channel::FrameSocket& channel, v1::RunEpoch order, Kept& kept, Faults& faults,
           StandbyPool& standby)
      : channel_(channel),
        kept_(kept),
        faults_(faults),
        standby_(standby),
        order_(std::move(order)),
        rendezvous_(channel, order_.assign().job(), order_.assign().epoch(), order_.rank()) {}

  const v1::RunEpoch& order() const { return order_; }
  int64_t epoch() const { return order_.assign().epoch(); }

  // Trains to the last step, the job's or that of a wished end, and sends every report of the
  // epoch; where the order says so it gives copies of state to others instead (RunEpoch.keeps).
  // When it returns nothing of the epoch runs any more and communicators are given back. Errors:
  // Cancelled after Stop or Leave, this rank's or another's; otherwise what ended the epoch. The
  // process may go on with another one after errors that IsCollateral (rank_reports.h).
  absl::Status Run();
  // Makes what needs nothing that the process keeps, on a thread of its own, for a Run() that comes
  // later: plan and communicators. `ended` is called there once, with whether all ranks are
  // connected, or this one has failed to be; it outlives the run.
  void ConnectBeside(std::function<void(bool)> ended);
  bool beside() const { return order_.beside(); }
  // Instead of Run(): makes ready, alone, what a process would need for an epoch like this one.
  void WarmUp();
  // Once Run() has returned OK: its last checkpoint may still be published, until WindDown().
  void Publish(const v1::PublishCheckpoint& order);
  // Of the thread of Run(): what is still written of its checkpoints is left to the process.
  void WindDown();

  // A newer epoch is connected: while this one trains it does the step under way, and ends as if it
  // had been stopped then, on all ranks with the same step. Where it does not train, or not all its
  // ranks know of that, it is stopped at once.
  void Leave();
  // The job is to end early, with a checkpoint.
  void WishEnd();
  void Deliver(const v1::Rendezvous& message) { rendezvous_.Deliver(message); }
  void Deliver(const v1::HostMemory& message, std::vector<UniqueFd> buffers);
  void Deliver(const v1::HostCopies& message, std::vector<UniqueFd> buffers);
  void Deliver(const v1::BeginEpoch& message);
  // Ends Run() soon: every wait on a peer is woken.
  void Stop(absl::Status reason);
  bool stop_requested() const;

 private:
  static constexpr absl::Duration kSendTimeout = absl::Seconds(30);

  // Of the job file, whose paths start from its folder.
  absl::Status MakePlanOfOrder();
  // epoch_log.cc: lines of the rank's log. `what` in words; LogPhase also says, and returns, after
  // how many seconds since the assignment came.
  void Log(absl::string_view what) const;
  double LogPhase(absl::string_view what) const;
  // How often LibTorch's allocator has asked CUDA, which holds up what comes behind.
  std::string SegmentsText() const;
  void LogLayout() const;
  void LogData() const;
  void LogMemory() const;
  // What the process takes by estimate, with the layouts that it tries. As slow as some programs
  // are made, so it is not for the thread of a step.
  void LogPeak() const;
  // Once, behind an epoch before: what this rank keeps has all its homes, or why it gets no more.
  void TellSafe(const std::string& why_not = "");
  // Some of it has one home for as long as the epoch lasts, and training goes on.
  absl::Status TellNoSecondHome(absl::string_view why);
  // Of the node: below which the job reads, and writes; none: anywhere.
  std::vector<std::string> ReadFolders() const {
    return {order_.read_folders().begin(), order_.read_folders().end()};
  }
  std::vector<std::string> WriteFolders() const {
    return {order_.write_folders().begin(), order_.write_folders().end()};
  }
  absl::Status OpenData();
  data::DataSetSpec SetOf(bool validation) const;
  // Samples as this rank reads them in `plan`; nullptr: as in its own, which kept_.source does.
  absl::StatusOr<std::unique_ptr<train::SampleSource>> SourceBeside(const plan::Plan& plan) const;
  // epoch_metrics.cc. Of the rank that reports.
  std::string Owner() const;  // as metrics.owner names the job
  std::string Lines() const;  // as kept_.lines
  absl::Status OpenMetrics();
  // Errors: those of MetricsWriter::Write.
  absl::Status WriteLine(const train::StepSummary& step);
  absl::Status Connect();
  // Waits until all ranks have come here.
  absl::Status AwaitAllConnected();
  // Of an epoch that goes on: waits until it is told from where.
  absl::Status AwaitBegin();
  bool goes_on() const { return order_.assign().goes_on(); }
  // The one that the state is to begin with, if the order names one. After AwaitBegin.
  absl::Status FindCheckpoint();
  absl::Status BorrowState(const train::BufferOptions& buffers);
  // epoch_copies.cc. Of an epoch that goes on from copies in host memory: says which this rank can
  // take, and takes them, in place of what the process keeps.
  bool from_copies() const { return order_.assign().from_copies(); }
  absl::Status FindCopies();
  absl::Status TakeCopies(const train::BufferOptions& buffers);
  // What is wrong with copies is state that is lost.
  static absl::Status OfCopies(absl::Status status);
  // Of those whose layout `source` has.
  absl::StatusOr<plan::Plan> PlanOfCopies(const v1::CopiesSource& source) const;
  // epoch_inherit.cc. Of a process that is no rank: says which copies its daemon has, and gives
  // them to ranks of other nodes. Nothing else of the epoch runs on it.
  absl::Status KeepCopies();
  // What such processes give to this rank, by their places: of which ranks, and the connections.
  struct Inheritance {
    std::map<int32_t, plan::RankList> ranks;
    std::map<int32_t, UniqueFd> links;
  };
  absl::StatusOr<Inheritance> MeetKeepers(const v1::CopiesSource& source, const plan::Plan& before);
  // Takes it, and adds its ranks to `copied`.
  absl::Status TakeInherited(const v1::CopiesSource& source, const plan::Plan& before,
                             const Inheritance& inheritance, train::TrainingState& training,
                             std::set<int32_t>& copied);
  // Connections of the taker with its keepers, or of a keeper with the taker: `others`, ascending.
  // Safe to call from several threads, for a taker each.
  absl::StatusOr<std::map<int32_t, UniqueFd>> MeetForCopies(Rank taker,
                                                            const std::vector<int32_t>& others);
  // Once all ranks have whole copies of this epoch, or all that they mirror, copies of epochs
  // before are of no more use.
  void TellCopiesWhole();
  void DropEarlierCopies();
  // Behind each decided step: pins, beside training, the copies that this rank would take over.
  absl::Status TendOthers();
  // The state comes to lie in the layout of this epoch, with what other ranks hold.
  absl::Status ChangeLayout();
  // Names the checkpoint in what went wrong with it.
  absl::Status OfCheckpoint(absl::Status status) const;
  // Unless the job wants none, or they are there already. Beside training, unless it is to be
  // `now`, where training goes on and their memory is not there.
  absl::Status MakeCheckpoints(bool now);
  // Whether nothing of an epoch before is written any more; its memory is there again then.
  bool HasWoundDown();
  // Waits for it. Errors: what the epoch was stopped with; DeadlineExceeded.
  absl::Status AwaitWoundDown();
  absl::Status BeginCheckpoints(std::unique_ptr<checkpoint::PinnedMapping> memory);
  void TellNoCheckpoint(absl::string_view of, const absl::Status& why);
  // Of an end before the job's last step. What goes wrong with it is told and ends there.
  void WriteLastCheckpoint();
  // Makes the second home of what of the state has it in host memory; where the node has no room
  // for it and the job leaves it open, an event says so.
  absl::Status KeepHostCopy();
  // What KeepHostCopy was told of the second home that could not be.
  absl::Status DoWithoutHostCopy(const absl::Status& kept);
  absl::Status UseHostCopy(absl::StatusOr<checkpoint::Mappings> made);
  // `beside`: what the node keeps of epochs before stays.
  absl::Status AskHostMemory(int64_t bytes, bool beside);
  // The daemon's answer to it. Errors: what the daemon says; Cancelled; DeadlineExceeded.
  absl::StatusOr<std::vector<UniqueFd>> AwaitHostMemory();
  // Which is there.
  absl::StatusOr<std::vector<UniqueFd>> TakeGiven() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Once an epoch, where training goes on and the daemon does not answer: it is waited for.
  void TellMemoryLate();
  // Behind each decided step: begins and takes what is made while training goes on. Errors end the
  // epoch: OutOfMemory, where the job asked for second homes in host memory and there is no room.
  absl::Status TendMemory();
  // Copies of the state end before the state changes its layout; their memory is kept.
  void GiveMemoryBack();
  // Nothing is made, and no memory goes, until a step of the next epoch is decided.
  void HoldMemory();
  int64_t LengthMultiple() const;
  absl::StatusOr<train::TrainerOptions> MakeTrainerOptions() const;
  train::BufferOptions Buffers() const;
  absl::Status WarmLibraries();
  absl::Status WarmUpDevice();
  // Runs this rank's passes of a plan whose shapes the process has not run.
  absl::Status WarmPlace(const plan::Plan& plan);
  // The same of the plans behind the loss of each other rank: a recovery runs nothing for the first
  // time. Best effort. Before the state of the epoch is there: two of them may not fit.
  void WarmForLosses();
  absl::Status TryAttention();
  // At the ends of the first steps, until all mirrors have what is theirs.
  absl::Status FillMirrors();
  // At the end of a step, until nothing is left: frees what communicators of before held.
  absl::Status FreeCommunicators();
  absl::Status MakeTrainer();
  absl::Status Train();
  absl::Status Evaluate();
  // Everything up to the report of success.
  absl::Status RunToEnd();
  // Whether the last part of a checkpoint is written. Errors: what it was stopped with.
  absl::StatusOr<bool> AwaitLastPart();
  // It has done the step behind which all ranks leave it. Returns what it ends with.
  absl::Status EndForNext();
  // The epoch ended early: what it left is waited for and told.
  absl::Status Quiesce(const absl::Status& ended);
  // Where what the process keeps stands.
  v1::RankReport QuietNow(bool context_ok) const;
  void AbortCommunicators(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Release();
  ReportsOf whose() const {
    return {.job = order_.assign().job(), .epoch = epoch(), .rank = order_.rank()};
  }
  absl::Status Report(v1::RankReport report);
  void OnStep(const train::StepSummary& step);
  void NoteWork(const train::StepSummary& step);
  void LogFirstSteps(const train::StepSummary& step);
  void OnTrace(const std::vector<schedule::TimedInstruction>& timeline,
               const std::vector<schedule::TimedOperation>& operations);

  channel::FrameSocket& channel_;
  Kept& kept_;
  Faults& faults_;
  StandbyPool& standby_;
  const v1::RunEpoch order_;
  ChannelRendezvous rendezvous_;
  plan::Plan plan_;
  schedule::SharedProductTable products_;  // that the plan names
  bool reporter_ = false;
  std::string store_;                             // as people and manifests name it
  std::optional<checkpoint::Manifest> manifest_;  // of the checkpoint that the order names
  // While the epoch runs: another may have to go back to it.
  std::optional<checkpoint::CheckpointLock> checkpoint_lock_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  double connected_after_ = 0, state_after_ = 0;       // seconds since then
  std::chrono::steady_clock::time_point steps_begun_;  // once all is ready
  bool safe_told_ = false;
  train::Start start_;          // of an epoch that goes on
  bool ends_at_start_ = false;  // it writes a checkpoint of that, and does no step
  int64_t first_step_ = 1;
  std::string output_;  // absolute
  std::unique_ptr<MetricsWriter> metrics_;
  RankFigures figures_;
  WorkWindow work_;
  uint64_t equal_work_ = 0, like_work_ = 0;     // plan::EqualWork, LikeWork
  bool wrote_ = false;                          // a checkpoint, when the last step was told
  std::optional<StepProfiler> profiler_;        // of a job that wants a step measured
  const schedule::Program* program_ = nullptr;  // the trainer's, while it runs
  // Of a clock that nobody sets.
  std::optional<std::chrono::steady_clock::time_point> progress_sent_;
  int64_t steps_told_ = 0;      // of this epoch, in the log
  absl::Status report_status_;  // the first report that could not be sent or written

  std::stop_source stopping_;  // thread-safe: ends waits for peers that connect, and for storage
  mutable Mutex mu_;
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);
  comm::Communicators communicators_;  // built under mu_; then the training thread's, but for Abort
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  bool end_wished_ ABSL_GUARDED_BY(mu_) = false;
  bool leave_wished_ ABSL_GUARDED_BY(mu_) = false;
  train::TrainingState* training_ ABSL_GUARDED_BY(mu_) = nullptr;  // while it is borrowed
  // Set under mu_. nullptr: the job wants none, or none but at an early end.
  std::unique_ptr<CheckpointRun> checkpoints_;
  bool checkpoints_later_ = false;  // once what an epoch before writes is written
  bool settled_ = false;            // a step of this epoch is decided
  bool asks_beside_ = true;         // first, for a second home
  int64_t to_ask_ = 0;              // bytes of a second home, for which the daemon is not asked yet
  bool memory_late_told_ = false;
  // Until when the daemon is to answer a question for host memory; absent: it was not asked.
  std::optional<comm::Deadline> asked_until_;
  CondVar given_changed_;
  std::optional<absl::StatusOr<std::vector<UniqueFd>>> given_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::BeginEpoch> told_ ABSL_GUARDED_BY(mu_);
  std::vector<checkpoint::HostCopyPair> copies_ ABSL_GUARDED_BY(mu_);  // that the daemon gave
  bool copies_given_ ABSL_GUARDED_BY(mu_) = false;                     // all of them
  bool copies_whole_told_ = false;
  bool others_asked_ = false;
  bool asked_of_this_ ABSL_GUARDED_BY(mu_) = false;    // what the daemon gives now is of others
  std::vector<UniqueFd> others_ ABSL_GUARDED_BY(mu_);  // copies that this rank would take over
  bool others_given_ ABSL_GUARDED_BY(mu_) = false;     // all of them
  std::unique_ptr<train::MirrorFill> fill_;            // nullptr: mirrors have what was sent
  int64_t filled_behind_ = 0;                      // the step behind which they got the last of it
  size_t fill_buckets_ = 0;                        // of it at a boundary; 0: not agreed on yet
  std::optional<comm::PeerKernels> peer_kernels_;  // while ranks on GPUs train
  // Goes before the communicators.
  std::unique_ptr<train::Trainer> trainer_;
  absl::Status connected_beside_;  // of the connector's thread, until it is joined
  // Last: ends before what it uses.
  std::jthread connector_;
};

}  // namespace phalanx::rank

// coordinator/machine/job_state.h: the durable state of one job, made of its records alone.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/machine/actions.h"
#include "coordinator/machine/copies.h"
#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

// Type of the events that count against data.corrupt_max. Each names shard and sample, in the same
// words whoever finds it.
inline constexpr char kCorruptSample[] = "CorruptSample";
inline constexpr char kCheckpointFailed[] = "CheckpointFailed";
inline constexpr char kCheckpointSkipped[] = "CheckpointSkipped";
// Of one that was to leave its devices: it is not any more.
inline constexpr char kEndGivenUp[] = "EndGivenUp";
inline constexpr char kWaiting[] = "Waiting";
// The last checkpoint cannot be gone back to: the one before it is the last.
inline constexpr char kCheckpointGivenUp[] = "CheckpointGivenUp";
// Checkpoints before the last one that are remembered for that.
inline constexpr size_t kEarlierCheckpointsMax = 8;
inline constexpr char kOutputWaiting[] = "OutputWaiting";

// Not thread-safe.
struct JobState {
  JobId id;
  JobRequestPtr request;
  std::string request_id;
  job::JobPhase phase = job::JobPhase::kQueued;
  std::string reason;
  bool suspended = false;     // it starts only once it is resumed
  bool queued_again = false;  // its epoch is over, and the next one has no layout yet
  bool trained = false;       // its ranks have all been ready, in this epoch or in one before
  Epoch epoch;
  // When the epoch was planned, in microseconds, or one more than the fence of the epoch before, so
  // that a clock that is set back does no harm. A store that was put back from a copy gives numbers
  // of epochs again, and no fence that is as large as one of before.
  int64_t fence = 0;
  Shared<plan::Layout> layout;  // its data_digest empty: no rank of this epoch was ever assigned
  Shared<Placement> placement;  // of the layout
  // That had ranks of an epoch before, and have none of this one: the newest is last, at most
  // kEarlierNodesMax.
  static constexpr size_t kEarlierNodesMax = 64;
  Shared<std::vector<NodeName>> earlier_nodes;
  std::string plan_digest;
  std::string standby;                         // as EpochPlanned
  std::optional<CheckpointSource> checkpoint;  // that the epoch begins with
  Epoch state_epoch;                           // from whose state it goes on; 0: from none
  Shared<plan::Layout> state_layout;           // of that epoch, if there is one
  std::optional<EpochStart> start;             // where it goes on, once that is known
  bool beside = false, ends = false;           // as EpochPlanned
  bool by_choice = false;                      // likewise
  bool from_copies = false;                    // of state, in host memory
  Epoch copies_epoch;                          // whose, once that is known
  plan::RankList copies_keepers;               // as EpochBegan
  CopiedEpochs copied;                         // whose ranks may have left such
  std::vector<int64_t> host_memory;            // bytes charged on each of layout->nodes; none: 0
  Instant submitted;
  std::optional<Instant> started, ended;
  // Since when its time_limit counts, and what of it was used up before, in runs that are over: the
  // queue is not counted. nullopt: it has not started since it was queued.
  std::optional<Instant> counts_since;
  absl::Duration used = absl::ZeroDuration();
  // Since when it has waited for what it lost, in this epoch, where it did not train on since.
  std::optional<Instant> waits_since;
  std::optional<StepReport> stored_step;
  std::optional<EpochStart> decided;  // with it, or where the epoch began
  std::optional<EvaluationReport> evaluation;
  std::optional<FailureCause> failure;
  std::set<std::string> corrupt_samples;  // as their events name them
  int64_t corrupt_bytes = 0;              // of those names
  std::set<int32_t> succeeded;            // ranks of this epoch that have done their last step
  int64_t ended_step = 0;                 // which is this one
  // It was asked to end before its last step, with a checkpoint.
  struct Ending {
    EndWished wish;
    Instant since;
    // A hold was over, or there was none to await: ranks that are left do no step more, whatever
    // was wished in its place since.
    bool saves = false;
    plan::RankList lost;  // as EndWished
  };
  std::optional<Ending> ending;
  // Why it trains on although it was to leave its devices; empty: it was not, or is again.
  std::string unsaved;
  // Of this epoch: the last step whose parts are all written, and what of it is to be published.
  int64_t checkpoint_step = 0;
  std::optional<CheckpointWritten> publishing;
  // Of an epoch before, which ended first: its rank may have published it all the same.
  std::optional<CheckpointWritten> publishing_before;
  std::optional<PublishedCheckpoint> last_checkpoint;
  std::vector<PublishedCheckpoint> earlier_checkpoints;  // oldest first; some may be deleted
  std::optional<CheckpointEnded> unpublished;  // of this epoch: the last that could not be
  int64_t event_count = 0;
  std::vector<IncidentPtr> incidents;  // the last kIncidentsMax, by number
  int64_t incidents_over = 0;          // of those up to this one nothing more is to be known

  // Applies `record`, which is of this job, and returns the events that it brings about. A record
  // that contradicts the state (a move that core/job/job_phase.h forbids, an older epoch) changes
  // nothing and returns none: a store that holds one was written by another program.
  std::vector<JobEvent> Apply(const JournalRecord& record);

  bool IsTerminal() const { return job::IsTerminal(phase); }
  std::optional<EpochStart> begun;  // where the last one went on that did
  // When ranks were lost that others went on without, and how often in a row behind the same step.
  std::vector<Instant> recoveries;
  int32_t without_progress = 0;
  int32_t failed_starts = 0;  // in a row, that led back to the queue
  // Of its time_limit, when its run began or begins.
  absl::Duration TimeLeft() const { return request->time_limit - used; }
  // The first step that a recovery can lose: behind it the job began.
  int64_t FirstStep() const { return checkpoint.has_value() ? checkpoint->step : 0; }
  // Behind which its epoch began, or would if it went on from no other's state.
  int64_t BegunBehind() const { return start.has_value() ? start->step() : FirstStep(); }
  bool goes_on() const { return state_epoch != Epoch{0}; }
  // "trains on 2 on a, 1 on b", and why although it was to leave.
  std::string TrainsText() const;
  JobView View(const std::optional<StepReport>& last_step) const;
};

// Whether a step was decided since the epoch before began.
bool Progresses(const JobState& job, const EpochStart& start);

// "by alice"; of nobody that is known "on request".
std::string OnRequestOf(const std::string& by);

// "its time_limit of 2h is reached", "node a is stopping".
std::string ReasonOf(const EndWished& wish, const JobRequest& request);

// The devices of the layout without those whose ranks are lost.
Placement WithoutLost(const plan::Layout& layout);

// "2 on a, 1 on b", and past kNodesNamedMax entries how many more there are.
std::string ToString(const Placement& placement);
inline constexpr size_t kNodesNamedMax = 16;

}  // namespace phalanx::coordinator

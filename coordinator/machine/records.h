// coordinator/machine/records.h: the facts that a coordinator keeps, and the words they are made
// of.
//
// A record is one decision. Applying a store's records in order gives the durable part of the
// coordinator's state (job_state.h), so a decision becomes a record first and is told to anybody
// only once the record is stored. Plain values; coordinator/wire turns them into protobuf and back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/shared.h"
#include "core/base/time.h"
#include "core/job/failure.h"
#include "core/job/job_phase.h"
#include "core/job/job_spec.h"
#include "core/job/node_check.h"
#include "core/plan/layout.h"

namespace phalanx::job {

inline bool operator==(const Budget& a, const Budget& b) {
  return a.total == b.total && a.without_progress == b.without_progress && a.window == b.window;
}

}  // namespace phalanx::job

namespace phalanx::coordinator {

// A job file as the user wrote it, and the absolute folder that its relative paths start from.
struct Document {
  std::string text;
  std::string directory;
  friend bool operator==(const Document&, const Document&) = default;
};

// What the coordinator itself reads from a job file. The rest of the document is for the planner
// and the ranks, who read the same text.
struct JobRequest {
  Document document;
  std::string name;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> node_selector;
  std::string output;  // absolute path
  std::vector<std::string> warnings;
  std::string layout_note;  // how the planner laid it out (parallel: auto); empty: it did not
  std::string data_key;     // of such a job: tells its training set from others
  // DigestOf (coordinator/wire/ended_codec.h) what was submitted, where that is not the document:
  // of such a job. A repetition is told by it, for whom the planner might choose otherwise.
  std::string submitted_digest;
  int64_t steps = 0;
  int64_t corrupt_max = 16;  // distinct corrupt samples; one more and the job fails
  absl::Duration time_limit = absl::InfiniteDuration();  // from when its epoch starts
  bool checkpoints = false;                              // it has a checkpoint section
  bool recovers = false;  // its ladder has a rung on which training goes on after a loss
  bool waits = false;     // for what is lost, where the rest cannot go on
  bool restarts = false;  // from a checkpoint, where state is lost
  // It writes checkpoints before its last step, so where there is none yet it starts from its first
  // step: that costs no more than the way back from one checkpoint to that before.
  bool begins_anew = false;
  bool rejoins = false;   // ranks that are back are taken again
  bool borrows = false;   // its ladder has `spare`: it may be lent a device that is in reserve
  bool relieves = false;  // replicas of devices that stay slow are dealt fewer samples
  bool standby = false;   // its ranks make communicators for a loss before there is one
  absl::Duration hold = absl::Minutes(10);  // that what is left of it keeps its devices, waiting
  job::Budget budget;                       // of its recoveries
  int32_t priority = 0;
  bool preemptible = false;  // it leaves its devices, its state saved, for larger priorities
  int32_t world = 0;         // ranks
  int32_t devices = 0;       // to be reserved, all at once; at least world
  job::DeviceKind device_kind = job::DeviceKind::kCpu;
  plan::RankList lost;  // that it begins without, as if their devices were gone
  std::string owner;    // who submitted it; empty: somebody whom nobody asked
  friend bool operator==(const JobRequest&, const JobRequest&) = default;
};
// Shared because views, records and commands of one job all carry it; never changes.
using JobRequestPtr = std::shared_ptr<const JobRequest>;

using plan::NodeDevices;
using plan::Placement;

struct StepReport {
  int64_t step = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  int64_t counted_tokens = 0;
  double seconds = 0;
  Epoch epoch;
  bool skipped = false;
  int64_t corrupt_samples = 0;
  friend bool operator==(const StepReport&, const StepReport&) = default;
};

// Of the curves that people see.
struct CurvePoint {
  int64_t step = 0;
  float loss = 0;
  float tokens_per_second = 0;  // 0: not known
  friend bool operator==(const CurvePoint&, const CurvePoint&) = default;
};

// What all ranks derive from everyone's records of one step (StepDecision of the wire). The
// coordinator hands it on in the same bits and acts on the step alone.
struct StepDecision {
  enum class Verdict : uint8_t { kCommitted, kSkipped, kEmpty } verdict = Verdict::kCommitted;
  int64_t step = 0;  // from 1
  double loss = 0, gradient_norm = 0, gradient_scale = 0;
  double counted_tokens = 0, corrupt_samples = 0;
  int64_t tokens = 0, images = 0, sounds = 0;
  friend bool operator==(const StepDecision&, const StepDecision&) = default;
};
// From where an epoch goes on.
struct EpochStart {
  std::optional<StepDecision> decision;  // nullopt: no step is decided yet
  int64_t updates = 0, skipped_in_a_row = 0;
  int64_t step() const { return decision.has_value() ? decision->step : 0; }
  friend bool operator==(const EpochStart&, const EpochStart&) = default;
};

struct Caption {
  std::string sample, truth, decoded;
  friend bool operator==(const Caption&, const Caption&) = default;
};
struct EvaluationReport {
  double loss = 0;
  int64_t counted_tokens = 0;
  double uniform_loss = 0;
  std::vector<Caption> captions;
  friend bool operator==(const EvaluationReport&, const EvaluationReport&) = default;
};

struct PublishedCheckpoint {
  int64_t step = 0;
  std::string path;
  Instant time;
  int64_t bytes = 0;
  double seconds = 0;  // that the slowest rank took to write its part
  friend bool operator==(const PublishedCheckpoint&, const PublishedCheckpoint&) = default;
};

struct FailureCause {
  job::FailureKind kind = job::FailureKind::kRankError;
  int32_t rank = -1;  // -1: no rank is to blame
  NodeName node;
  int32_t signal = 0;
  int32_t exit_code = 0;
  std::string message;
  Instant time;
  friend bool operator==(const FailureCause&, const FailureCause&) = default;
};

struct JobEvent {
  int64_t number = 0;  // from 1 within a job, without gaps
  Instant time;
  std::string type;
  std::string message;
  Epoch epoch;
  friend bool operator==(const JobEvent&, const JobEvent&) = default;
};

struct JobSubmitted {
  JobRequestPtr request;
  std::string request_id;
};
struct PhaseChanged {
  job::JobPhase phase = job::JobPhase::kQueued;
  std::string reason;
  std::optional<FailureCause> failure;
  bool in_order = false;  // it is queued again since it was asked to leave, and has lost nothing
};
// A checkpoint that ranks without the job's state begin with.
struct CheckpointSource {
  std::string path;             // absolute
  std::string manifest_digest;  // of its text
  int64_t step = 0;             // the last one that it holds
  friend bool operator==(const CheckpointSource&, const CheckpointSource&) = default;
};
// Stored twice for an epoch: without the layout's data_digest before anybody is asked to prepare
// data, and with it before any rank is assigned. So an epoch without one has no ranks.
struct EpochPlanned {
  Shared<plan::Layout> layout;
  std::string plan_digest;
  std::optional<CheckpointSource> checkpoint;
  // Bytes that its ranks are charged for on each of layout.nodes; none: nothing is.
  std::vector<int64_t> host_memory;
  // From whose state its ranks go on, behind the step that EpochBegan says; 0: they begin anew.
  Epoch state_epoch;
  // Not of what processes keep, but of copies in host memory, of the epoch that EpochBegan says.
  bool from_copies = false;
  // The set of communicators that its ranks have made for it (standby.h); empty: they make them.
  std::string standby = "";
  // Ranks of the epoch before train on until all are connected for it (Recovery::beside).
  bool beside = false;
  // Its ranks do no step: they write a checkpoint and end (EndWished::queues).
  bool ends = false;
  // Nobody had to leave the epoch before (Recovery::by_choice): it counts in no budget.
  bool by_choice = false;
};
// From where the epoch goes on: stored before any of its ranks is told.
struct EpochBegan {
  Epoch epoch;
  EpochStart start;
  Epoch copies_epoch = {};  // whose ranks made the copies of state that it begins with; 0: none
  plan::RankList copies_keepers = {};  // places of nodes without work that give some of them
};
struct EventRecorded {
  std::string type;
  std::string message;
  Epoch epoch;
};
struct Evaluated {
  EvaluationReport evaluation;
};
struct StepReached {
  StepReport step;
  std::optional<EpochStart> decided = std::nullopt;  // the last step that it is known of
  // Of the job up to this step, ascending, thinned out. No decision hangs on it: the machine leaves
  // it empty, and whoever stores the record fills it in.
  std::vector<CurvePoint> curve = {};
};
// The ranks of a node, all of which have done their last step. Kept so that a coordinator that
// restarts before the other nodes have done it needs that node no more; of a node that is not done
// yet the worker says again what its ranks have said.
struct RanksSucceeded {
  Epoch epoch;
  std::vector<int32_t> ranks;
  int64_t step = 0;  // before the job's last one after EndWished; 0: the job's last
};
// The ranks are to end before the job's last step, with a checkpoint.
struct EndWished {
  // What the job then fails with, kTimeLimit or kNodeStopped; nullopt: it is cancelled.
  std::optional<job::FailureKind> failure;
  NodeName node;  // of kNodeStopped, or one that the job leaves because it drains
  // No `failure`: it waits in the queue, its state saved. Where it is not to be suspended, nobody
  // preempts it and no node of it drains, recovery.hold is over, and its ranks do no step more; a
  // layout that no rung of its ladder allows may hold its state for that.
  bool queues = false;
  // Of a hold that is over, or of a job that leaves and would have to wait: what it was waiting
  // for, which nobody else stores. Its ranks do no step more.
  plan::RankList lost = {};
  bool suspends = false;
  JobId preempted_by;  // 0: nobody does
  std::string by;      // who cancels or suspends it; empty: not known
  bool AfterHold() const { return queues && !suspends && preempted_by == JobId{} && node.empty(); }
};
// Somebody lets the job wait in the queue until it is resumed, or resumes it.
struct SuspensionChanged {
  bool suspended = false;
  std::string by;  // empty: not known
};

// All ranks of the epoch have written their parts of a checkpoint: `rank` is to publish it. Stored
// before it is told, so no epoch publishes anything once a later one is stored.
struct CheckpointWritten {
  Epoch epoch;
  int64_t step = 0;
  int32_t rank = 0;
  std::string parts_digest;
  int64_t bytes = 0;   // of all parts
  double seconds = 0;  // that the slowest rank took to write its part
  friend bool operator==(const CheckpointWritten&, const CheckpointWritten&) = default;
};
// It is published, or cannot be.
struct CheckpointEnded {
  Epoch epoch;
  int64_t step = 0;
  std::string path;
  std::string error;  // empty: it is published
};

// What befell the job, as far as that is known: takes the place of what was stored under its
// number.
struct Incident;
using IncidentPtr = std::shared_ptr<const Incident>;
struct IncidentNoted {
  IncidentPtr incident;
};

// What people have decided about a node.
struct NodeMark {
  bool drains =
      false;  // jobs leave it; else it is cordoned. Either way nothing new is placed on it
  std::string reason;
  std::string by;  // who decided; empty: not known
  Instant since;
  friend bool operator==(const NodeMark&, const NodeMark&) = default;
};
// Its devices are kept for jobs that lose one: the queue gives them to no job.
struct ReserveMark {
  std::string reason;
  std::string by;  // who decided; empty: not known
  Instant since;
  friend bool operator==(const ReserveMark&, const ReserveMark&) = default;
};
// What is known of a node that its worker may not say again. Takes the place of what was stored of
// the node before.
struct NodeMarked {
  NodeName node;
  std::optional<NodeMark> mark;                       // nullopt: it is neither cordoned nor drained
  std::optional<ReserveMark> reserve = std::nullopt;  // nullopt: it is not in reserve
  // Of devices that have failed, or are slow; stored when a verdict changes, not for other figures.
  std::vector<job::DeviceCheck> checks = {};
  // Of them, devices that have failed and get jobs all the same, until they are checked again.
  std::vector<int32_t> let_back = {};
};

// Takes the place of what was stored of the owner before.
struct DeviceTimeUsed {
  std::string owner;
  double device_seconds = 0;  // that count at the time of the record (quotas.h)
};

struct JournalRecord {
  Instant time;
  JobId job;  // 0: of NodeMarked and DeviceTimeUsed, which are of none
  std::variant<JobSubmitted, PhaseChanged, EpochPlanned, EventRecorded, Evaluated, StepReached,
               RanksSucceeded, CheckpointWritten, CheckpointEnded, EndWished, EpochBegan,
               IncidentNoted, SuspensionChanged, NodeMarked, DeviceTimeUsed>
      body;
};

// What a store has given out, which its records may not show any more.
struct StoreMarks {
  uint64_t last_record = 0;
  JobId last_job;
};

}  // namespace phalanx::coordinator

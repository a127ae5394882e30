// coordinator/machine/actions.h: what the machine asks of the world, one struct an order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/machine/events.h"
#include "coordinator/machine/records.h"
#include "core/base/shared.h"
#include "core/job/data_shape.h"
#include "core/job/node_check.h"
#include "core/job/node_examination.h"
#include "core/plan/derivation.h"
#include "core/plan/memory_fit.h"

namespace phalanx::coordinator {

// A device that takes longer for a rank's work than others take for the same (slow_ranks.h).
struct SlowDevice {
  JobId job;
  int32_t rank = 0;
  NodeName node;
  int32_t device = 0;
  double seconds = 0, others_seconds = 0;  // of work a step; at the pace of the others
  int32_t others = 0;
  Instant since;  // it was named
  double ratio() const { return seconds / others_seconds; }
  friend bool operator==(const SlowDevice&, const SlowDevice&) = default;
};
// "takes 2.50 times as long for its work as the 3 others with the same: 250 ms a step, not 100 ms".
std::string ToString(const SlowDevice& slow);
inline constexpr size_t kSlowDevicesMax = 64;  // that are listed of a job

// A job as everybody outside sees it: a snapshot, true when its records were stored.
struct JobView {
  JobId id;
  JobRequestPtr request;
  job::JobPhase phase = job::JobPhase::kQueued;
  Epoch epoch;
  std::string reason;
  Instant submitted;
  std::optional<Instant> started, ended;
  std::optional<StepReport> last_step;
  std::optional<PublishedCheckpoint> last_checkpoint;
  Shared<Placement> placement;
  Shared<plan::Layout> layout;  // of its epoch; without modules: there is none yet, or it has ended
  std::string plan_digest;
  std::optional<FailureCause> failure;
  Shared<std::vector<NodeName>> earlier_nodes;  // as JobState
  bool suspended = false;
  bool fits_no_nodes = false;  // it is queued, and all nodes that match are too few
  bool damaged = false;        // a stand-in for what the store cannot give
  // Of its epoch, while it trains; by rank, at most kSlowDevicesMax.
  Shared<std::vector<SlowDevice>> slow_devices;
};
using JobViewPtr = std::shared_ptr<const JobView>;

struct NodeView {
  NodeName name;
  bool connected = false;
  bool suspect = false;  // silent for long; connected
  std::string refused;  // why its worker may not connect as it is; empty: not known that it may not
  std::string unfit;    // why nothing new is placed on it; empty: nothing is known
  bool draining = false;
  job::DeviceKind device_kind = job::DeviceKind::kCpu;
  std::vector<JobId> device_jobs;         // of each device; 0: free
  std::vector<int64_t> device_memory;     // bytes of each device; 0, or no entry: unknown
  std::vector<std::string> device_names;  // as drivers call them; "", or no entry: unknown
  int64_t host_memory = 0;                // bytes that jobs may use beside devices; 0: unknown
  // Degrees Celsius of each device at the last heartbeat, 0: unknown; empty: of every one.
  std::vector<int32_t> device_temperatures;
  std::vector<int64_t> device_used_memory;      // bytes at that one, -1: unknown; empty: of all
  std::vector<int32_t> failed_devices;          // that get no job, in order
  std::shared_ptr<const job::NodeCheck> check;  // the last of its devices; nullptr: there was none
  // Of its machine, by this process of its worker; nullptr: it has said nothing of it.
  std::shared_ptr<const job::NodeExamination> examination;
  Instant last_heartbeat;
  std::map<std::string, std::string> labels;
  std::string version;
  std::optional<NodeMark> mark;
  std::optional<ReserveMark> reserve;
  std::vector<SlowDevice> slow_devices;  // of the jobs that have them; the board adds them
};

struct PrepareData {
  JobId job;
  JobRequestPtr request;
  bool choose_checkpoint = false;
};
struct Assign {
  JobId job;
  Epoch epoch;
  JobRequestPtr request;
  Shared<plan::Layout> layout;
  std::string plan_digest;
  std::optional<CheckpointSource> checkpoint;
  bool goes_on = false;      // its ranks wait for BeginEpoch
  bool beside = false;       // and make their connections while they train in the epoch before
  bool from_copies = false;  // they say before that which copies of state there are
  plan::RankList keepers;    // and so do these places, of nodes without work
  std::string standby;       // the set of communicators that they have made for it; empty: none
  int64_t fence = 0;         // as JobState
};
// Ranks of the epoch that have work in the layout make its communicators, beside training, and say
// so (RankStandby).
struct PrepareStandby {
  JobId job;
  Epoch epoch;
  std::string set;  // its name
  Shared<plan::Layout> layout;
  std::string plan_digest;
  int64_t attempt = 0;  // another one each time that the set is asked for
};
// In whose layout copies of state lie that an epoch begins with.
struct CopiesSource {
  Epoch epoch;
  Shared<plan::Layout> layout;
  std::string plan_digest;
  plan::RankList keepers = {};  // places of nodes without work that have some
};
struct BeginEpoch {
  JobId job;
  Epoch epoch;
  EpochStart start;
  std::optional<CopiesSource> copies = std::nullopt;
  bool ends = false;  // with a checkpoint, before its first step
};
struct Rendezvous {
  JobId job;
  Epoch epoch;
  Shared<std::map<std::string, std::string>> entries;  // the same for every node
  size_t bytes = 0;                                    // of them
};
struct StopRanks {
  JobId job;
  Epoch epoch;  // and older
  absl::Duration grace;
  std::string reason;
};
struct FetchLogs {
  std::string fetch_id;
  JobId job;
  std::vector<int32_t> ranks;
  bool follow = false;
  bool ended = false;  // the job has
  int32_t tail = 0;
  std::map<int32_t, std::string> after;
};
struct PublishCheckpoint {
  JobId job;
  Epoch epoch;
  int32_t rank = 0;  // which publishes it
  int64_t step = 0;
  std::string parts_digest;
};
// The ranks of the epoch are to end early, all at the same step, with a checkpoint.
struct Wish {
  JobId job;
  Epoch epoch;
};
// The rank writes the file of the incident in the job's output folder.
struct WriteIncident {
  JobId job;
  Epoch epoch;
  int32_t rank = 0;
  std::string output;  // absolute path of the folder
  IncidentPtr incident;
};
// Sent once: a node whose session broke meanwhile does not get it.
struct InjectFault {
  Token token;  // whoever asked for it waits for the answer
  JobId job;
  Epoch epoch;
  job::InjectedFault fault;
};
// Sent once, likewise: first to node `to`, which listens, then to `from`, which connects.
struct TryPeer {
  Token token;  // whoever asked for it waits for the answer
  NodeName from, to;
  std::string word;
  std::string listens_at;  // HOST:PORT in numbers; empty: it is for `to`
};
using Command =
    std::variant<PrepareData, Assign, BeginEpoch, Rendezvous, StopRanks, FetchLogs,
                 PublishCheckpoint, Wish, WriteIncident, InjectFault, PrepareStandby, TryPeer>;

// Records are numbered without gaps over the life of a process, above all that the store has held.
struct StoreRecord {
  uint64_t record_number = 0;
  JournalRecord record;
};
// Answered with PlanComputed. Planning may take seconds, so it runs beside the machine.
struct ComputePlan {
  uint64_t number = 0;
  JobRequestPtr request;
  Placement placement;
  // Of the placement, with what is lent in its place; without what other jobs are charged for.
  plan::MemoryLimits limits;
  std::set<std::string> device_names;  // of the same devices, as drivers call them, where they do
  Epoch epoch;
  int32_t derivation = plan::kDerivation;  // of a new layout (core/plan/derivation.h)
  // The table of algorithms of products that all nodes have, empty: none, which a new layout takes.
  // `layout` keeps its own as long as that is it. nullopt: none of them has been heard.
  std::optional<std::string> products;
  // Decided before: it stays, but for the ranks `lost`, and only whether the devices hold it is
  // asked.
  std::optional<Shared<plan::Layout>> layout;
  plan::RankList lost;
  plan::RankList returned;  // ranks that `layout` is without, to be counted on again
  // Of these, those that return on another device than they had; they may be among `lost`, too.
  std::map<Rank, plan::Device> lent;
  plan::RankList unfit;  // places whose devices idle and may not take over
  // Nobody of `layout` is lost or back, and these places are the slow ones from now on.
  std::optional<plan::SlowPlaces> slow;
  // Places whose state is gone, where the plan is of use only if there is other state: DataLoss
  // where some of `layout` has no home elsewhere.
  plan::RankList stateless;
  // Nobody has to leave this layout, whose ranks train: DataLoss where these alone have some of its
  // state and the plan has no work for them (plan::CheckStateIsKept).
  struct Kept {
    Shared<plan::Layout> layout;
    bool mirrored = false;  // its mirrors have all that it gives them
  };
  std::optional<Kept> kept;
  bool any_rung = false;  // whatever the job's ladder says
  // Nobody of `lost` is lost: FailedPrecondition where the loss would cost state, so that nothing
  // can be made ready for it.
  bool standby = false;
};
// Nobody wants the plan any more; the answer may come all the same, without one.
struct DropPlan {
  uint64_t number = 0;
};
// All of the ended job's records are stored and its devices are free: make them one entry, and say
// JobArchived.
struct ArchiveJob {
  JobId job;
};
// The job is not in the machine's memory: delete its entry, if there is one, and answer.
struct DeleteEndedJob {
  Token token;
  JobId job;
};
struct SendWelcome {
  SessionId session;
};
struct SendCommand {
  SessionId session;
  uint64_t command_number = 0;  // of this incarnation
  Command command;
};
struct CloseSession {
  SessionId session;
  absl::Status status;
};
struct PublishJob {
  JobViewPtr job;
};
struct PublishStep {
  JobId job;
  StepReport step;
};
struct PublishEvent {
  JobId job;
  JobEvent event;
};
struct PublishEvaluation {
  JobId job;
  std::shared_ptr<const EvaluationReport> evaluation;
};
struct PublishIncident {
  JobId job;
  IncidentPtr incident;
};
struct PublishNode {
  std::shared_ptr<const NodeView> node;
};
// What an index says of the training set that the key stands for (JobRequest::data_key).
struct PublishDataShape {
  std::string key;
  job::DataShape shape;
};
struct PublishHeartbeat {
  NodeName node;
  Instant time;
  std::vector<int32_t> device_temperatures;  // as NodeView's
  std::vector<int64_t> device_used_memory;   // as NodeView's
};
struct RetractNode {
  NodeName node;
};
struct AnswerJob {  // of a submit, a cancel, a suspend or a resume
  Token token;
  absl::StatusOr<JobViewPtr> job;
};
struct RefuseDelete {
  Token token;
  absl::Status status;
};
struct AnswerExplain {
  Token token;
  absl::StatusOr<std::vector<std::string>> reasons;
};
// Of a job that waits for devices.
struct QueueSpot {
  int64_t number = 0;                // from 1, among those that wait for the same devices
  std::optional<Instant> starts_by;  // at the latest, as time limits go; nullopt: nobody knows
  // Before that, if those before it train on as they did last: a RoughTime. nullopt: that does not
  // tell.
  std::optional<Instant> starts_about;
};
struct AnswerQueue {
  Token token;
  absl::StatusOr<std::map<JobId, QueueSpot>> spots;  // of those that wait
};
// One fetch per node; each ends with the worker's upload or with EndLogs.
struct LogSource {
  NodeName node;
  std::string fetch_id = "";  // empty: the node is not connected, and nothing comes from there
};
struct AnswerLogs {
  Token token;
  absl::StatusOr<std::vector<LogSource>> sources;
};
// A fault that the node has taken on.
struct Injected {
  JobId job;
  Epoch epoch;
  NodeName node;
};
struct AnswerInject {
  Token token;
  absl::StatusOr<Injected> injected;
};
struct AnswerReach {
  Token token;
  absl::StatusOr<std::string> fault;  // why it does not reach it, a sentence; empty: it does
};
// What becomes of a job on a node that drains.
struct JobOnNode {
  JobId job;
  std::string name;
  std::string what;    // behind its name: "saves its state, and then goes on elsewhere"
  bool stays = false;  // the node waits for it, or for somebody who ends it
};
struct MarkedNode {
  std::shared_ptr<const NodeView> node;
  std::vector<JobOnNode> jobs;  // of one that drains: those that have devices of it
};
struct AnswerNode {  // of a NodeMarkRequested or a ReserveRequested
  Token token;
  absl::StatusOr<MarkedNode> node;
};
struct EndLogs {
  std::string fetch_id;
  std::string reason;
};
// A decision in one line, for the log.
struct LogLine {
  std::string text;
};

using Action =
    std::variant<StoreRecord, ComputePlan, DropPlan, ArchiveJob, DeleteEndedJob, SendWelcome,
                 SendCommand, CloseSession, PublishJob, PublishStep, PublishEvent,
                 PublishEvaluation, PublishIncident, PublishNode, PublishHeartbeat,
                 PublishDataShape, RetractNode, AnswerJob, RefuseDelete, AnswerExplain, AnswerQueue,
                 AnswerLogs, AnswerInject, AnswerReach, AnswerNode, EndLogs, LogLine>;

}  // namespace phalanx::coordinator

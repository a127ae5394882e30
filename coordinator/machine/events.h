// coordinator/machine/events.h: what the world tells the machine, one struct a fact.
//
// A *session* is one stream of one worker process; a process that reconnects has a new session and
// its old incarnation. A *token* names a caller who waits for an answer; the machine only echoes
// it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/machine/quotas.h"
#include "coordinator/machine/records.h"
#include "core/base/ids.h"
#include "core/base/violation.h"
#include "core/checkpoint/manifest.h"
#include "core/job/data_shape.h"
#include "core/job/injected_fault.h"
#include "core/job/node_check.h"
#include "core/job/node_examination.h"
#include "core/plan/derivation.h"
#include "core/plan/layout_change.h"

namespace phalanx::coordinator {

using SessionId = StrongId<struct SessionTag, uint64_t>;  // 0: none
using Token = StrongId<struct TokenTag, uint64_t>;

struct SubmitRequested {
  Token token;
  JobRequestPtr request;
  std::string request_id;  // empty: none
  // Why it becomes no job as things are now; OK: nothing is known against it. A repetition is
  // answered with what it became all the same.
  absl::Status refusal = absl::OkStatus();
  // It becomes no job; what would be told to it comes before `refusal`.
  bool asks_only = false;
  // Who submits it is an operator: the owner's quota does not bound its priority.
  bool any_priority = false;
};
struct CancelRequested {
  Token token;
  JobId job;
  bool checkpoint = false;  // it is to end with one, if it can
  std::string by;           // who cancels it; empty: not known
};
// It leaves its devices, its state saved, and waits until it is resumed.
struct SuspensionRequested {
  Token token;
  JobId job;
  bool suspended = false;  // false: it is resumed
  std::string by;          // empty: not known
};
// Only a job that has ended is deleted; one whose ranks are still ending is deleted after them.
struct DeleteRequested {
  Token token;
  JobId job;
};
struct ExplainRequested {
  Token token;
  JobId job;
  // Why the store takes nothing now: what is decided is told all the same. Empty: it does.
  std::string store_fault = "";
};
// Where jobs stand in the queue.
struct QueueRequested {
  Token token;
  std::vector<JobId> jobs;
};
struct LogsRequested {
  Token token;
  JobId job;
  std::vector<int32_t> ranks;  // empty: all
  bool follow = false;
  int32_t tail = 0;
  // Places to go on after, by node and rank.
  std::map<NodeName, std::map<int32_t, std::string>> after;
  // Of a job that has ended, which the machine may have let go.
  Placement placement;
  std::vector<NodeName> earlier_nodes = {};
};

struct InjectRequested {
  Token token;
  JobId job;
  job::InjectedFault fault;
};

// Whether ranks on one node would reach those on another.
struct ReachRequested {
  Token token;
  NodeName from, to;
  std::string word;  // v1.TryPeer's, drawn for this
};

// Somebody decides about a node.
struct NodeMarkRequested {
  Token token;
  NodeName node;
  std::optional<NodeMark> mark =
      std::nullopt;     // but for who and when; nullopt: it takes jobs again
  std::string by = "";  // who decides; empty: not known
  bool force = false;   // of one that drains: jobs that cannot save their state are ended
};

// Somebody takes a node into the reserve, or out of it.
struct ReserveRequested {
  Token token;
  NodeName node;
  std::optional<ReserveMark> reserve = std::nullopt;  // but for who and when; nullopt: out
  std::string by = "";                                // who decides; empty: not known
};

// What owners may have from now on. Jobs that have devices keep them.
struct QuotasChanged {
  Quotas quotas;
};

struct RunningAssignment {
  JobId job;
  Epoch epoch;
};
struct WorkerHello {
  NodeName node;
  Incarnation incarnation;
  uint64_t last_command_number = 0;
  job::DeviceKind device_kind = job::DeviceKind::kCpu;
  int32_t devices = 0;
  std::vector<int64_t> device_memory;     // bytes of each device, 0: unknown; empty: of every one
  std::vector<std::string> device_names;  // as drivers call them, "": unknown; empty: of every one
  int64_t host_memory = 0;                // bytes that jobs may use beside devices; 0: unknown
  std::map<std::string, std::string> labels;
  int32_t derivation = plan::kDerivation;  // the largest of layouts that its ranks carry out
  bool gives_copies = true;                // carries out Assign::keepers
  std::string version;
  std::string address;
  std::vector<RunningAssignment> running;
  uint64_t store = 0;  // that `running` and `last_job` are of; 0: none is known
  JobId last_job;
  std::shared_ptr<const job::NodeCheck> check;  // nullptr: none was made
};
struct SessionOpened {
  SessionId session;
  WorkerHello hello;
};
struct SessionClosed {
  SessionId session;
  std::string refused;  // why its worker is not to come back as it is; empty: it may
};
// How long a rank's device works for a step, its waits left out: of its last steps.
struct RankWork {
  int32_t rank = 0;
  double seconds = 0;  // above 0
  uint64_t equal = 0;  // that of ranks which do the same; not 0
  // The same for 10^9 floating-point operations, and that of ranks which do the same to each
  // sample; both above 0, or none is known.
  double seconds_per_gflop = 0;
  uint64_t like = 0;
};
struct Progress {
  JobId job;
  Epoch epoch;
  int64_t step = 0;
  std::vector<RankWork> work;  // of ranks of which it is known
  // For so long at least each rank of the node that is not done has stood in one and the same wait
  // for its device or for other ranks; zero: some does not.
  absl::Duration waits = absl::ZeroDuration();
};
// A data set that a node prepares, or will.
struct Preparing {
  JobId job;
  int64_t bytes_read = 0;  // grows while storage answers
  JobId behind;            // the job whose data it waits behind; 0: it does not wait
};
struct HeartbeatReceived {
  SessionId session;
  std::vector<Progress> progress;
  std::vector<Preparing> preparing;
  bool draining = false;
  std::vector<int32_t> device_temperatures;     // degrees Celsius, 0: unknown; empty: of every one
  std::vector<int64_t> device_used_memory;      // bytes, -1: unknown; empty: of every one
  std::shared_ptr<const job::NodeCheck> check;  // nullptr: nothing new
  std::shared_ptr<const job::NodeExamination> examination;  // likewise
};
struct CommandFinished {
  SessionId session;
  uint64_t command_number = 0;
  int32_t code = 0;  // canonical; 0: carried out
  std::string message;
  std::string data_digest;
  std::vector<Violation> data_violations;
  int64_t corrupt_samples = 0;
  std::vector<std::string> corrupt_messages;
  Epoch epoch_seen;  // of a refused Assign: the last one of the job that its node has seen
  // Of a PrepareData that chose a checkpoint.
  struct Choice {
    std::optional<CheckpointSource> checkpoint;
    std::vector<std::string> passed_over;
  };
  std::optional<Choice> choice;
  std::optional<job::FailureKind> failure_kind;  // of a PrepareData that failed, where it is known
  std::string listens_at;                        // of a TryPeer that listens: HOST:PORT in numbers
  std::optional<job::DataShape> data_shape;      // of a PrepareData, where it is known
};

struct RendezvousEntry {
  std::string key;
  std::string value;
};
// Seconds since the rank got its assignment, until it was connected, had its state and was ready;
// 0: not known.
struct RankReady {
  double connected = 0, state = 0, ready = 0;
};
// All that the rank keeps of the job's state has the homes that the epoch gives it.
struct RankSafe {
  std::string why_not;  // it gets no second home in this epoch; empty: it has all
};
// Whether the rank has made a set of standby communicators (PrepareStandby), and used each once.
struct RankStandby {
  std::string set;
  std::string error;  // why it has not; empty: it has
};
struct RankSucceeded {
  int64_t step = 0;
  bool early = false;  // after a Wish, before the job's last step
};
struct RankError {
  job::FailureKind kind = job::FailureKind::kRankError;  // kPeerLost: accuses another
  int32_t accused = -1;                                  // of kPeerLost; -1: it cannot say whom
  std::string message;
};
// Its process has died; how is told by RankExited.
struct RankDied {};
struct RankExited {
  int32_t exit_code = 0;
  int32_t signal = 0;
  bool expected = false;
  std::string log_tail;
};
struct RankEvent {
  std::string type;
  std::string message;
};
struct RankCheckpointPart {
  int64_t step = 0;
  checkpoint::PartFile part;  // its file empty: the rank has nothing to write
  double seconds = 0;         // that writing it took
};
struct RankCheckpointPublished {
  int64_t step = 0;
  std::string path;
  std::string error;  // empty: it is published
};
// Nothing of the epoch runs on the rank any more, and its process keeps the state.
struct RankQuiet {
  EpochStart known;  // the last step that it knows to be decided
  // A pipeline part and a rank whose shares of it this one keeps optimizer state for.
  struct Home {
    int32_t module = 0, chunk = 0;
    int32_t primary = 0;  // the rank that is the primary home: this one, or one that it mirrors
    int64_t applied = 0;  // the last step that it has applied
    friend bool operator==(const Home&, const Home&) = default;
  };
  std::vector<Home> homes;
  bool context_ok = false;        // its device has done all that it was given, and works on
  std::optional<int64_t> copied;  // the last step of whose state host memory has a whole copy
  Epoch layout_epoch;             // the last one that began with that state; 0: not known
  int64_t begun = 0;              // the last step that it has begun; 0: none, or not known
  friend bool operator==(const RankQuiet&, const RankQuiet&) = default;
};
// Copies of state in its daemon's memory that the rank can take, or that a keeper can give.
struct RankCopies {
  struct Copy {
    EpochStart start;   // with it
    uint64_t plan = 0;  // first 64 bits of the digest of the plan in whose layout it lies
    friend bool operator==(const Copy&, const Copy&) = default;
  };
  // What a rank was given buffers for in an epoch; copies: those that are whole.
  struct Pair {
    int32_t rank = 0;
    Epoch epoch;
    std::vector<Copy> copies;
    friend bool operator==(const Pair&, const Pair&) = default;
  };
  std::vector<Pair> pairs;
  friend bool operator==(const RankCopies&, const RankCopies&) = default;
};
struct RankReported {
  SessionId session;
  JobId job;
  Epoch epoch;
  int32_t rank = 0;
  std::variant<RendezvousEntry, RankReady, StepReport, RankSucceeded, RankError, RankDied,
               RankExited, RankEvent, EvaluationReport, RankCheckpointPart, RankCheckpointPublished,
               RankQuiet, RankCopies, RankSafe, RankStandby>
      report;
  // Beside a StepReport: what another epoch goes on from, should all ranks that know it be gone.
  std::optional<EpochStart> decided = std::nullopt;
};

// What planning made of a job on its devices. Errors: InvalidArgument, also where the job needs
// more memory than they have.
struct PlanSummary {
  plan::Layout layout;
  std::string digest;              // of the plan
  std::vector<std::string> notes;  // of the plan: what was lowered, what losing a device costs
  // Bytes that the ranks take of the memory of each of layout.nodes; none: nothing of any.
  std::vector<int64_t> host_memory;
  std::vector<plan::LayoutChange> changes;  // from the layout that the order names
  // Why some state has one home alone under the plan; empty: all has more.
  std::string single_home;
  // Of replicas with places that are or were slow, where they have other samples than under the
  // layout that the order names: "replica 1 of language has 3 of 8 samples a step, not 4".
  std::vector<std::string> dealt = {};
  // What the ranks kept that the order calls lost is left in copies in host memory alone.
  bool needs_copies = false;
};
// Answer to ComputePlan.
struct PlanComputed {
  uint64_t number = 0;
  absl::StatusOr<PlanSummary> plan;
};

// All records up to this number are on disk.
struct RecordStored {
  uint64_t record_number = 0;
};
// The job's records have become one entry among the ended jobs: the store answers for it now.
struct JobArchived {
  JobId job;
};
// They cannot be made one, for the records are damaged: the job stays where it is.
struct ArchiveFailed {
  JobId job;
  absl::Status status;
};
// Deadlines are judged as of `read_until`: all that came in before it has been fed, and what came
// in later may show that nobody is late.
struct DeadlineReached {
  Instant read_until = absl::InfiniteFuture();
};
// This process did not run for so long. Comes before anything that waited meanwhile.
struct Stalled {
  absl::Duration duration;
};

using Event =
    std::variant<SubmitRequested, CancelRequested, SuspensionRequested, DeleteRequested,
                 ExplainRequested, QueueRequested, LogsRequested, InjectRequested, ReachRequested,
                 NodeMarkRequested, ReserveRequested, QuotasChanged, SessionOpened, SessionClosed,
                 HeartbeatReceived, CommandFinished, RankReported, PlanComputed, RecordStored,
                 JobArchived, ArchiveFailed, DeadlineReached, Stalled>;

}  // namespace phalanx::coordinator

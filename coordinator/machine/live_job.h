// coordinator/machine/live_job.h: a job in the machine's memory: its durable state, what a
// coordinator knows of it beside that, which nobody stores, and what follows from these alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/events.h"
#include "coordinator/machine/incident.h"
#include "coordinator/machine/job_state.h"
#include "coordinator/machine/recovery.h"
#include "coordinator/machine/run.h"
#include "coordinator/machine/slow_ranks.h"
#include "coordinator/machine/standby.h"
#include "core/base/step_times.h"

namespace phalanx::coordinator {

// Not thread-safe.
struct LiveJob {
  JobState state;
  std::optional<StepReport> last_step;
  // Its devices are held and its plan is being made: the first one of a queued job, or whether
  // the layout of a job that starts fits its devices for another epoch.
  struct Planning {
    uint64_t number = 0;
    Placement placement;
    std::vector<int64_t> host_memory;      // there was when it was ordered, as MemoryLimits::nodes
    std::map<Rank, plan::Device> lent;     // as ComputePlan::lent
    std::optional<plan::SlowPlaces> slow;  // as ComputePlan::slow
    bool mirrored = false;                 // as ComputePlan::Kept
  };
  std::optional<Planning> planning;
  std::optional<Run> run;             // from its plan until its devices are free again
  std::optional<Recovery> recovery;   // since ranks were lost, until all that are left are ready
  std::optional<EpochStart> decided;  // of the last step that was reported
  std::optional<Incident> incident;   // that befell it, until nothing more is to be known of it
  std::string verdict_told;           // of `incident`, the last one that was told
  // Of an incident that began under a coordinator before this one: ranks that had no work when this
  // one started.
  std::optional<std::set<int32_t>> resumed_without;
  bool verdict_waits = false;  // to be told, once it is told how a process ended
  // Since when it waited for what it lost when this coordinator started, until it is seen to train.
  std::optional<Instant> held_since;
  // What spoke for the verdict that is being found, and since when.
  struct Evidence {
    Instant since;
    bool accused = false;
    std::vector<std::string> lines;
  };
  std::optional<Evidence> evidence;
  int32_t reporter = -1;  // the rank that reports steps; -1: not known
  StepTimes step_times;   // as they were reported
  int64_t stepping = 0;   // how many ranks with work did those steps; 0: not known
  // Which of its ranks are slow. Found anew in each epoch, and by each coordinator.
  struct Slowness {
    Epoch epoch;
    SlowRanks ranks;
    std::map<int32_t, Instant> since;  // of those that are slow
    std::map<int32_t, Instant> over;   // of places that the layout has as slow: not any more
  };
  Slowness slowness;
  // How samples come to be dealt otherwise, since devices are slow or are not any more
  // (coordinator_pace.cc).
  struct Pacing {
    std::vector<Instant> changes;  // of this coordinator, in options.pace_window
    // When ranks could not be connected for one last: none is tried in options.pace_window.
    Instant failed = absl::InfinitePast();
    // In the newest epoch of which there are any, of which places nothing was to be won if they
    // alone were slow.
    static constexpr size_t kRefusedMax = 64;
    Epoch refused_in;
    std::set<plan::RankList> refused;
  };
  Pacing pacing;
  // When it stayed on its devices last, since its state could not be saved.
  Instant unsaved = absl::InfinitePast();
  // Incidents whose files are older than what is known of them.
  std::set<int64_t> incidents_unwritten;
  // Ranks that have died and whose exit was not told yet, with the epoch in which they did.
  std::set<std::pair<Epoch, int32_t>> exits_awaited;
  plan::RankList returning;  // ranks that the plan that is being made has again
  // With these, in the layout of this epoch, whoever alone has some of the state would have no
  // work; with `mirrored` as the plan was ordered.
  struct NotYet {
    Epoch epoch;
    plan::RankList ranks;
    bool mirrored = false;
    friend bool operator==(const NotYet&, const NotYet&) = default;
  };
  NotYet not_yet;
  std::map<NodeName, Incarnation> copies_with;  // daemons that keep copies of its state
  // By node whose ranks are to be back: what process of it has been told to make ready for which.
  struct Preparation {
    Incarnation of;
    bool done = false;
    bool refused = false;     // it has not the job's data
    std::set<int32_t> ranks;  // not lost since
  };
  std::map<NodeName, Preparation> prepared;
  // Ranks that were lost again on their way back to a node, under which process of it, and how
  // often in a row.
  struct LostAgain {
    static constexpr int32_t kTimesMax = 3;  // then it stays out while that process lives
    Incarnation of;
    int32_t times = 0;
  };
  std::map<std::pair<int32_t, NodeName>, LostAgain> lost_again;
  // Devices in reserve that are held for lost places, until these are on them.
  std::map<int32_t, plan::Device> loans;
  Standby standby;  // of its epoch
  uint64_t last_record = 0;
  // Of its views that wait for the store: the record of the first, and where the newest lies.
  struct NewestView {
    uint64_t record = 0;
    size_t index = 0;
    job::JobPhase phase = job::JobPhase::kQueued;
  };
  uint64_t first_view_record = 0;
  NewestView newest_view;
  Instant step_stored_at = absl::InfinitePast();
  int64_t rank_events = 0, silence_events = 0, slow_events = 0;
  // Corrupt samples without an event, and fingerprints of what would name them, so that each
  // counts once. The store does not know them: a coordinator that restarts counts them anew.
  int64_t unnamed_corrupt = 0;
  std::set<uint64_t> unnamed_fingerprints;
  int64_t spared_events = 0;           // of its ranks, since the store fell behind
  std::vector<Token> delete_requests;  // to be carried out when it is archived
  absl::Status archive_failure;        // why the store could not make it an entry
  bool too_large = false;              // while it is queued: for all nodes that match
  std::string too_few;                 // while it is too large: WhyTooFew (too_few.h)
  std::string over_quota;              // while it is queued: why its owner's quota keeps it there
  bool charged = false;                // its owner is, for its devices
};

absl::Status NoSuchJob(JobId id);

// Whether it waited when this coordinator started, and its nodes have still to say what there is.
bool WaitsAsBefore(const LiveJob& job);
inline constexpr absl::string_view kWaitedBefore =
    "waits for what it had lost before this coordinator started; nodes have still to report";

// What follows from one job alone.
//
// Whether a rank of it waits for the output folder.
bool OutputWaits(const LiveJob& job);
// A hold was over: its ranks do no step more.
inline bool IsSaving(const LiveJob& job) {
  return job.state.ending.has_value() && job.state.ending->saves;
}
// It has been asked to leave its devices and to wait in the queue, its state saved, and has not.
inline bool Leaves(const LiveJob& job) {
  return job.state.ending.has_value() && job.state.ending->wish.queues;
}
void NoteDecided(LiveJob& job, const std::optional<EpochStart>& decided);
// Steps behind `step` that were decided, as far as it is known.
int64_t StepsSince(const LiveJob& job, int64_t step);
// That it would begin with, were it to start anew.
std::optional<CheckpointSource> LastCheckpoint(const LiveJob& job);
// The step behind which it would: of the last checkpoint; 0, the beginning, where no step is
// decided or it has not come to the first of its checkpoints. Nothing: what it has trained is not
// to be thrown away.
std::optional<int64_t> StepToGoBackTo(const LiveJob& job);
// Whether its ranks may be asked to end with a checkpoint and to wait in the queue. Errors:
// FailedPrecondition, which says what to do instead.
absl::Status MaySuspend(const LiveJob& job);

// Whether its ranks train, and can end with a checkpoint of their next step.
bool MayEndWithCheckpoint(const LiveJob& job);
// Whether it trains, and may go on after a loss from where it stands.
bool MayRecover(const LiveJob& job);
// Whether it trains, and may begin again, its state lost (StepToGoBackTo).
bool MayGoBack(const LiveJob& job);
// Whether it trains, and may wait for what is lost where that may have copies of state that those
// that are left lack, and there is no checkpoint.
bool MayWaitForState(const LiveJob& job);
// Whether it has recovered as often as it may in so long.
bool BudgetIsSpent(const LiveJob& job, Instant now);

// Adds to the first line of a message; a log may follow it.
void AddReason(absl::string_view reason, std::string& message);

// Whether a process has died, and how it ended is still to be told.
bool IsUntold(const LiveJob& job, const FailureCause& cause);

// What has happened to a rank of it, at `now`, with the node of the rank where it has a run.
FailureCause CauseOf(Instant now, const LiveJob& job, int32_t rank, job::FailureKind kind,
                     std::string message);

// Of one that has a run:
Assign AssignmentOf(const LiveJob& job);
// What tells a node all that was `said`, in commands that are not too large.
std::vector<Rendezvous> RendezvousOf(const LiveJob& job, std::map<std::string, std::string> said);
// Whether some rank of the team has work and is not known to be lost. Who runs ranks has the data.
bool HasRanks(const LiveJob& job, const Team& team);

bool Contains(const plan::RankList& ranks, Rank rank);

// Of one that recovers:
// ranks that are lost and that the present layout, which may never have begun, still counts on;
plan::RankList LostOfLayout(const LiveJob& job);
// the processes of the node are gone (nothing happens where it does not recover);
void EndSilence(LiveJob& job, const NodeName& node);
// all ranks are to say which copies of state there are, and so are its keepers;
void AwaitCopies(LiveJob& job);
// the set of standby communicators that all ranks of the plan have; empty: there is none.
std::string StandbyFor(const LiveJob& job, const PlanSummary& plan);

// Those that are slow in its epoch, by rank, at most kSlowDevicesMax; of one that does not train,
// none.
std::vector<SlowDevice> SlowDevicesOf(const LiveJob& job);

}  // namespace phalanx::coordinator

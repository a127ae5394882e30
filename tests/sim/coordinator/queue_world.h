// tests/sim/coordinator/queue_world.h: the queue of the coordinator's machine, where nothing
// breaks, or the coordinator alone, or nodes: jobs of all sizes, priorities, limits and owners
// arrive at random, people suspend and resume them, cordon and drain nodes, and change quotas. A
// second is a step of every job that trains.
//
// The machine is the real one; nodes do at once what they are told. What must hold is computed
// anew from its plain state, with none of its own arithmetic:
// - a device is given to one job at a time, and only once the ranks of the one before are gone; it
//   is one that the job asks for, where nodes are of several kinds and have labels;
// - the first job that waits, of those that ask for the same kind and labels, is passed over only
// by
//   one that takes nothing of what it could use, or that ends before it can start; it does not
//   start later for it, nor for want of what is left of its owner's quota; jobs start in the order
//   of the queue otherwise;
// - owners have no more than their quotas when a job of theirs gets devices, and of jobs of one
//   priority the one whose owner has used less by its weight, as far as that was stored when the
//   coordinator died last, is before the other;
// - a job asked to leave for another one is preemptible and of a smaller priority, and has devices
//   that the other one could use;
// - a job that left goes on behind the last step that it did; a job's limit ends it in time;
// - a drained node is left by all that can save their state;
// - a job that waits starts as soon as there are devices for it, if none before it could use any of
//   them;
// - among small jobs that arrive without end one of all devices starts within the limits of those
//   before it (queue_world_crowd.cc);
// - where the coordinator dies, in the middle of a write, and another one goes on with what is
//   stored: every submit, cancel, suspend, resume, cordon, drain, uncordon, reserve and unreserve
//   that was answered is there (queue_world_crashes.cc);
// - where nodes are lost (queue_world_losses.cc), all of this holds of the nodes that are there: a
//   job of which a node is away, or has come back a moment ago, may be late to leave and to end,
//   and goes on behind its last checkpoint that was published; where no state was lost it goes on
//   behind its last step all the same. Only jobs that had something on a lost node fail of it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/machine/coordinator.h"
#include "core/base/prng.h"

namespace phalanx::coordinator {

class QueueWorld {
 public:
  struct Faults {
    // What breaks now and then.
    bool crashes = false;  // the coordinator dies
    bool losses = false;   // nodes are lost
    // Nodes are of two kinds and have two labels, which jobs ask for; and jobs have spares, unless
    // nodes are lost: plans here bring none into use.
    bool mixed = false;
    // For WaitOfTheWidest: one owner without a quota.
    bool crowded = false;
    // The same of several owners, of different weights, of whom one has a quota.
    bool owners = false;
  };
  explicit QueueWorld(uint64_t seed, Faults faults);

  // A second passes, and somebody may ask for something.
  void Act();
  // A job of all devices comes among jobs of few, each with a time limit, of which new ones arrive
  // without end, more than there is room for; all are of one priority, and of one owner unless the
  // world has several. Goes on until it has started. The bound: all that had devices when it came
  // are over by the last of their limits; from then on those that waited before it, of whom each
  // may have had all devices, one after another, are over when the sum of their limits has passed;
  // then it is planned. A limit counts with what is granted to a job that ends by it. To start
  // later is a violation.
  struct Wait {
    absl::Duration waited, bound;
    int64_t arrived = 0;  // jobs, meanwhile
  };
  Wait WaitOfTheWidest();
  // Nobody asks for anything any more and nothing is kept back: false: some job does not end.
  bool Finish();

  const std::vector<std::string>& violations() const { return violations_; }
  std::string Describe() const;
  // How often: a job was planned ahead of one that waits; one was preempted; one went on behind a
  // step that it had saved; a node was drained; a job's quota kept it waiting though there were
  // devices; a job was planned before an older one since its owner had used less; one was planned
  // ahead of one of the same owner, who has a quota; one was planned before an older one that it
  // takes nothing from.
  struct Counts {
    int64_t apart = 0;
    int64_t ahead = 0, preempted = 0, went_on = 0, drained = 0, kept = 0, turns = 0, left = 0;
    int64_t crashes = 0, lost = 0;  // of the coordinator; records that went with it
    // Answers that were looked for after each crash since: of jobs and of nodes.
    int64_t job_answers = 0, node_answers = 0;
    // Nodes that died, and that were cut off; jobs that a loss hit while they had devices, that
    // went on with what they had, that went on behind a checkpoint, that were queued again, that
    // failed of it; steps done again.
    int64_t died = 0, cut = 0, hit = 0, recovered = 0, went_back = 0, queued = 0, failed = 0;
    int64_t again = 0;
    Counts& operator+=(const Counts& other);
  };
  const Counts& counts() const { return counts_; }

 private:
  // As queue_forecast.cc has them: what a job may take before its time_limit counts, and its
  // processes behind its end.
  static constexpr absl::Duration kPlanned = absl::Seconds(30), kGone = absl::Seconds(30);
  static constexpr const char* kOwners[] = {"alice", "bob", "carol"};
  struct Host {
    NodeName name;
    SessionId session;
    job::DeviceKind kind = job::DeviceKind::kCpu;
    std::map<std::string, std::string> labels;
    std::vector<JobId> devices;     // the job whose ranks are there; 0: nobody's
    std::optional<Instant> drains;  // since then
    Incarnation incarnation{1};
    // When it comes back; nullopt: it is there. Meanwhile nothing passes between it and the
    // coordinator, and its ranks live on if it is cut off.
    std::optional<Instant> away_until;
    bool cut = false;
    bool welcome = true;                  // the coordinator has taken it in since
    Instant back = absl::InfinitePast();  // when it did so, after a loss
    std::map<JobId, Epoch> running;
    uint64_t last_command = 0;
  };
  // Ranks of an epoch: those of `assigned` nodes are there.
  struct Training {
    Epoch epoch;
    Placement placement;
    std::set<NodeName> assigned;
    bool ready = false, wished = false, ended = false;
    std::vector<std::pair<NodeName, RankReported>> said;  // but for steps of before
    // Of an epoch that goes on with what ranks have: nodes that were told behind which step, and
    // that have the state of it.
    bool goes_on = false, ends = false, gave_up = false, accuses = false;
    std::set<int32_t> lost;  // ranks that it has no work for, spares among them
    std::set<NodeName> begun, state;
    std::vector<NodeName> Working() const;
    std::vector<int32_t> RanksOf(const NodeName& node) const;  // with work
  };

  // Plain copies of what the machine promises with.
  Instant LimitOf(const Coordinator::Job& job) const;
  Instant EndOf(const Coordinator::Job& job) const;  // InfiniteFuture: nobody knows
  Instant StartOf(int64_t needed, int64_t free,
                  std::vector<std::pair<Instant, int64_t>> held) const;
  bool Suits(const NodeName& node, const JobRequest& request) const;
  // Of nodes that suit it: devices that may be had now, and all of them.
  int64_t FreeFor(const JobRequest& request) const;
  int64_t CapacityFor(const JobRequest& request) const;
  // Whether one may keep the other waiting: by a node that suits both, or by their owner's quota.
  bool Compete(const JobRequest& a, const JobRequest& b) const;
  // What the owner's jobs have but for `later`, of devices and of jobs.
  std::pair<int64_t, int64_t> HeldBy(const std::string& owner, const std::set<JobId>& later) const;
  double ShareOf(const std::string& owner, const std::set<JobId>& later) const;
  // Its owner's when the job was looked at by the look that has planned planned_, but for `later`.
  double ShareAtTurn(const Coordinator::Job& job, std::set<JobId> later) const;
  // Jobs that wait, and those of them that their quotas keep, were it not for `later`.
  std::set<JobId> Waiting(const std::set<JobId>& later) const;
  std::set<JobId> Kept(const std::set<JobId>& waiting, const std::set<JobId>& later) const;
  // Whether the first is considered before the second, both waiting; nullopt: their owners' shares
  // are too close to tell.
  std::optional<bool> IsBefore(const Coordinator::Job& a, const Coordinator::Job& b,
                               const std::set<JobId>& later) const;
  Quotas DrawQuotas();
  // `job` is planned ahead of `first`; `later`: it, and those planned behind it.
  void CheckLeavesQuota(const Coordinator::Job& job, const Coordinator::Job& first,
                        std::set<JobId> later);
  void CheckQuotas(const std::vector<JobId>& planned);
  void CheckAnswer(const AnswerJob& answer);
  void UseDevices();  // for a second
  void RestoreUse();  // a coordinator that has just read what is stored knows of no more

  // queue_world_crashes.cc
  // It dies, and one that goes on with the first `kept` records takes its place.
  void Crash(uint64_t kept);
  std::optional<uint64_t> CrashesAt();  // drawn: so many of the records are kept
  void RestoreEnds();
  SessionOpened Hello(Host& host);  // on a new stream
  void Suspend(JobId job, bool suspended);
  void Cancel(JobId job, bool checkpoint);
  void Mark(const NodeName& node, std::optional<NodeMark> mark, bool force);
  void Reserve(const NodeName& node, bool reserves);
  void Note(const AnswerJob& answer);
  void Note(const AnswerNode& answer);
  void CheckAnswered();

  // queue_world_losses.cc
  void LoseSomething();
  void Lose(Host& host, bool cut, absl::Duration time);
  void ComeBack(Host& host);
  void NoteHit(const Host& host);
  void DropAnswersOf(SessionId session);
  void NoteSaved(const Event& heard);
  // Since when all nodes that the job has devices of are there; InfiniteFuture: some is not.
  Instant UndisturbedSince(JobId job) const;
  bool IsOnlyOfAway(JobId job) const;  // no device of a node that is there
  void Accuse(JobId id, Training& training, const NodeName& gone);
  void CheckMoved(JobId id, const PhaseChanged& moved);
  void CheckWaits();
  absl::StatusOr<PlanSummary> PlanOf(const ComputePlan& order);

  // queue_world_nodes.cc
  void Begin(Host& host, const BeginEpoch& begin);
  void Stop(Host& host, const StopRanks& stop);
  void SayQuiet(Host& host, JobId id, Epoch epoch, Training& training);
  bool IsMirrored(JobId id) const;
  EpochStart KnownOf(JobId id);  // what its ranks know to be decided
  // The epoch begins with what ranks have. False: it cannot, or not yet.
  bool Enter(JobId id, Training& training);
  void EndEpoch(JobId id, Training& training, int64_t step, bool early);
  void WriteParts(JobId id, Training& training, int64_t step);
  // `behind`: the step of the checkpoint that it begins with.
  void BeginAnew(const Assign& assign, int64_t behind);

  void Feed(const Event& event);
  void Take(const Action& action);
  void Obey(Host& host, uint64_t number, const Command& command);
  void Assigned(Host& host, const Assign& assign);
  void CheckPlanned(const std::vector<JobId>& planned);
  // `later`: the job, and those planned behind it.
  void CheckAhead(const Coordinator::Job& job, const Coordinator::Job& first,
                  const std::set<JobId>& later);
  // Of each kind and labels that jobs ask for, the first of those that wait before the job and
  // could have devices. None: there is none, or nobody can tell.
  std::vector<const Coordinator::Job*> FirstsBefore(const Coordinator::Job& job,
                                                    const std::set<JobId>& later);
  // Of such firsts, those that their owner's quota keeps, since others of them come before and are
  // to have what is left of it.
  std::set<JobId> KeptByFirsts(const std::vector<const Coordinator::Job*>& firsts,
                               const std::set<JobId>& later) const;
  // What a job of a world of several kinds asks for: at least one node suits it.
  void DrawWish(JobRequest& request);
  void CheckLimits();
  void CheckDrains();
  void Train(JobId id, Training& training);
  void ReportAll(JobId id, Training& training, decltype(RankReported::report) report);
  void Report(JobId id, Training& training, int32_t rank, decltype(RankReported::report) report);
  void Submit();
  // queue_world_crowd.cc
  JobId SubmitOf(int32_t devices, const char* owner);
  void Crowd();  // a second passes, in which small jobs arrive
  void Ask();
  void Second();
  Host& HostNamed(const NodeName& name);
  void Violate(std::string what) { violations_.push_back(std::move(what)); }
  bool Chance(uint64_t in) { return prng_.Below(in) == 0; }

  Prng prng_;
  const Faults faults_;
  CoordinatorOptions options_;
  Instant now_ = absl::FromUnixSeconds(1'700'000'000);
  Quotas quotas_;
  std::map<std::string, double> used_;  // device-seconds of each owner, as they count now
  std::map<Token, JobRequestPtr> asked_;
  std::optional<Coordinator> machine_;
  std::vector<Host> hosts_;
  int64_t devices_ = 0;
  std::map<JobId, Training> training_;
  std::map<JobId, int64_t> done_;  // steps of each job, in all
  std::deque<Event> answers_;      // of nodes, not yet heard
  uint64_t records_ = 0, stored_ = 0, token_ = 0;
  std::vector<JournalRecord> log_;  // records_ of them, of which stored_ outlive the coordinator
  uint64_t sessions_ = 0, incarnations_ = 1;
  // Jobs of which ranks were lost since they began or went back; that had something on a node that
  // was lost since they were queued; all of whose ranks have all of the state; the last step whose
  // checkpoint the coordinator has heard to be published; the epoch that was over when they were
  // queued again.
  std::set<JobId> lost_, hit_;
  std::set<std::string> mirrored_;  // by name
  std::map<JobId, int64_t> saved_;
  std::map<JobId, Epoch> over_;
  bool settling_ = false;
  // What was asked for, by the token of who waits, and what was answered last. Who asks again for
  // the same knows nothing until that is answered, too.
  struct Asked {
    JobId job;
    std::optional<bool> suspended;  // nullopt: it is cancelled
    bool checkpoint = false;
  };
  struct Marked {
    NodeName node;
    bool reserves = false;  // what follows is of the reserve
    std::string mark;       // or "in reserve"; empty: none
  };
  std::map<Token, Asked> asked_of_jobs_;
  std::map<Token, Marked> asked_of_nodes_;
  std::set<JobId> submitted_;
  std::map<JobId, bool> cancelled_;  // with a checkpoint?
  std::map<JobId, bool> suspended_;
  std::map<std::pair<NodeName, bool>, std::string> marked_;  // by node and Marked::reserves
  std::vector<JobId> planned_;  // ordered in the step that is being taken
  std::vector<ComputePlan> plans_;
  static constexpr size_t kSaidMax = 100;
  std::deque<std::string> said_;  // by the coordinator, last
  std::vector<std::string> violations_;
  Counts counts_;
};

}  // namespace phalanx::coordinator

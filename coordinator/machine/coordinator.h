// coordinator/machine/coordinator.h: every decision the coordinator makes, and nothing else.
//
// A deterministic state machine. The driver feeds it one Event at a time together with the instant
// it was observed; the machine returns the Actions that the driver must carry out, in order. It
// owns no thread, lock, socket, file, timer or clock, so a run is a pure function of (options,
// events) and can be replayed.
//
// Stored before told: a decision is a JournalRecord; what follows from it for the outside
// (commands, answers, published views) comes out of the Step that receives RecordStored for it.
// Recover() replays stored records through the same code, so a coordinator that restarts has the
// state that it had told of.
//
// One job:
//   Queued    waits until all its devices are free. Larger priorities first, then first come, first
//             served: a later job may start only on nodes that no earlier waiting job could use, or
//             where its time_limit ends it before the earlier one could start (queue_order.h).
//             Among jobs of one priority owners take turns, whose jobs wait for their quota, too
//             (owners.h). Its devices are held while its plan is made; then it starts, or it waits
//             again where one of them is gone.
//   Starting  its epoch is stored with its layout; the data is prepared on the first node, then on
//             the others, and their digests agree; all ranks are assigned; what ranks say for the
//             others (rendezvous) is forwarded to every node. One of which a node is lost before
//             any rank is assigned is Queued again, a few times in a row.
//   Running   all ranks are ready. Steps come from the reporter rank.
//   then Succeeded when all ranks are, Failed at the first evidence, or Cancelled on request. One
//             that writes checkpoints has its ranks end with one first where its time limit, or a
//             node that stops, ends it (coordinator_early_end.cc).
// Or somebody, a larger priority or a node that drains takes its devices away: it ends all ranks
// with a checkpoint and is Queued again (coordinator_leave.cc, coordinator_drain.cc).
// The devices of an ended job are free once its ranks are gone for certain, or their node has been
// lost for so long that it is forgotten. Then the job leaves for the store.
//
// A broken session ends no job: the ranks train on, and the worker comes back with its incarnation
// and says what it runs. A new incarnation of a node, or a node that is silent or away for longer
// than the heartbeat timeout, has lost its ranks; on one that is silent for half of that nothing
// new is placed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/agenda.h"
#include "coordinator/machine/coordinator_options.h"
#include "coordinator/machine/events.h"
#include "coordinator/machine/held_actions.h"
#include "coordinator/machine/live_job.h"
#include "coordinator/machine/node_table.h"
#include "coordinator/machine/owners.h"
#include "coordinator/machine/plan_orders.h"
#include "coordinator/machine/queue_forecast.h"
#include "coordinator/machine/queue_order.h"

namespace phalanx::coordinator {

// Not thread-safe: one driver thread owns it (coordinator/runtime/driver.h).
class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);

  // Replays the records of a store, in order; call once, before the first Step. Returns what to do
  // about them (views to publish). Running jobs then wait for their nodes.
  [[nodiscard]] std::vector<Action> Recover(Instant now, const std::vector<JournalRecord>& records,
                                            const StoreMarks& marks = {});

  // Applies `event`, observed at `now`, and returns what to do about it. Total: an event that no
  // longer applies (an old incarnation, an older epoch, a repeated report) changes nothing. `now`
  // never decreases from one call to the next.
  [[nodiscard]] std::vector<Action> Step(Instant now, const Event& event);

  // No DeadlineReached before it would change anything. Where one at that instant does not either,
  // the next deadline is later afterwards.
  // Due at once where devices or nodes have changed since the queue was looked at: that is done
  // once for all events that came together.
  Instant NextDeadline() const {
    if (capacity_changed_) return absl::InfinitePast();
    return std::min({node_agenda_.next(), run_agenda_.next(), trial_agenda_.next(), look_});
  }

  // For tests and checkers.
  using Job = LiveJob;
  const std::map<JobId, Job>& jobs() const { return jobs_; }
  const NodeTable& nodes() const { return nodes_; }
  uint64_t last_record() const { return last_record_; }
  // How often a job of the queue was looked at for a place.
  uint64_t jobs_considered() const { return jobs_considered_; }
  // Whether the request id is of a job in jobs().
  bool KnowsRequest(const std::string& request_id) const {
    return request_ids_.contains(request_id);
  }

 private:
  // coordinator.cc: records, tells, deadlines.
  void Commit(Job& job, decltype(JournalRecord::body) body);
  void Tell(const Job& job, Held held);
  void TellAfter(uint64_t record_number, Held held);
  void Release(Held held);
  // Whether the store is so far behind that what can be spared is.
  bool StoreIsBehind() const {
    return held_.count() >= options_.held_max || held_.bytes() >= options_.held_bytes_max;
  }
  // Tells the view; of those that wait for the store the first and the newest of a phase are kept.
  void TellView(Job& job, JobViewPtr view);
  void TellSpared();
  void Publish(Job& job);
  void Log(std::string text);
  void On(const RecordStored& event);
  void On(const DeadlineReached& event);
  void On(const Stalled& event);
  void CheckRunDeadlines(Job& job, Instant judged);
  // Of an epoch that a coordinator before this one started: nodes are back without their ranks.
  void LoseUnseenRanks(Job& job);
  void FailPreparing(Job& job);
  // `deadline` is one of job.run.
  void SetDeadline(const Job& job, Instant& deadline, absl::Duration delay);
  void RecoverRun(Job& job);
  // coordinator_silence.cc: nodes that are not heard.
  void Heard(Node& node, SessionId session);
  Instant DeadlineOf(const Node& node) const;
  // After anything that may have moved it to earlier.
  void NoteDeadline(const Node& node) { node_agenda_.Note(node.name, DeadlineOf(node)); }
  void CheckNodeDeadlines(Instant judged);
  void Suspect(Node& node);
  void EndSuspicion(Node& node);
  // Once for all that were heard since the last deadline.
  void TellHeardAgain();
  // An event "nodes a, b: WHAT" of each job that has devices on some of them.
  void TellJobsOn(const std::set<NodeName>& nodes, const std::string& type,
                  const std::string& what);
  void Lose(Node& node);
  void Forget(const NodeName& name);

  // coordinator_requests.cc: submit, cancel, delete, archive.
  void On(const SubmitRequested& event);
  void On(const CancelRequested& event);
  void On(const DeleteRequested& event);
  void RefuseDeletes(Job& job, const absl::Status& status);
  void On(const JobArchived& event);
  void On(const ArchiveFailed& event);
  // coordinator_questions.cc: explain, the queue, logs.
  void On(const ExplainRequested& event);
  void On(const QueueRequested& event);
  void On(const LogsRequested& event);
  // coordinator_queue.cc: the queue, and plans.
  void LookFor(Job& job);  // which is new in the queue
  void Schedule();         // looks at all of the queue anew, after devices or nodes have changed
  void On(const QuotasChanged& event);
  // Its owner is charged for its devices, or not any more: to be called when it has come to have
  // some, or to have none.
  void NoteCharge(Job& job);
  // Whether its owner's quota keeps a queued job where it is. One that is too large waits for
  // nodes.
  bool WaitsForQuota(Job& job, bool too_large);
  // Starts to plan a queued job, or says what it waits for. Those before it were considered.
  void Consider(Job& job);
  // Why it becomes no job as things are here.
  absl::Status CheckSubmit(const JobRequest& request, bool any_priority) const;
  // The document of a job that has not ended; `bytes` below 0: that has now.
  void CountDocument(const JobRequest& request, int64_t bytes);
  void Enqueue(const Job& job);
  void LeaveQueue(const Job& job);
  void Unpark(const Job& job);
  QueueForecast Forecast() const { return QueueForecast(options_, jobs_, nodes_, now_); }
  // Nodes on which no job may start that ends at `end`: others wait for them.
  std::set<NodeName> ClosedTo(Instant end) const;
  // `job` does not fit: its nodes are closed to those behind it that end after it could start.
  void CloseNodesFor(const Job& job);
  // Of a job whose epoch is over: stores its last step, and gives up the plan that is being made.
  void StoreLastStep(Job& job);
  void DropPlanning(Job& job);
  void Plan(Job& job, Placement placement);
  // `asked` says its placement; where a layout was decided before, that one, what is lost of it and
  // what is back, and so on. What follows from the job and its nodes is added here.
  void OrderPlan(Job& job, ComputePlan asked);
  void On(const PlanComputed& event);
  void TellNotes(Job& job, const PlanSummary& plan);
  void SayStarts(Job& job);  // records that the job with its first layout is starting
  void OnNextEpochPlanned(Job& job, const Job::Planning& ordered,
                          const absl::StatusOr<PlanSummary>& plan);
  // Ends planning; the devices are free again unless the job goes on to hold them.
  Job::Planning EndPlanning(Job& job);
  // Charges the nodes of the job's epoch for its host memory, until their devices are freed.
  void ChargeNodes(const Job& job);
  void FreeDevices(const Job& job, const NodeName& name, const std::vector<int32_t>& devices);
  std::vector<std::string> Explain(const Job& job) const;
  std::vector<std::string> ExplainQueued(const Job& job) const;

  // coordinator_nodes.cc: sessions.
  void On(const SessionOpened& event);
  void Admit(Node& node, const SessionOpened& event);
  // What the process behind the name before had is gone.
  void ReplaceProcess(Node& node);
  void PrepareAgain(Node& node);
  void PrepareAnew(Job& job, Team& team, FailureCause cause);
  void KeepWaiting(Node& node, const SessionOpened& event);
  void AdmitNewcomer(Node& node);
  // Judges anew what was said about the ranks of a node that is back.
  void SettleAnew(const Node& node);
  void On(const SessionClosed& event);
  void On(const HeartbeatReceived& event);
  // Of one that cannot prepare data nothing is placed on it: while its examination says so, or for
  // a while.
  void NoteFitness(Node& node);
  void RestUnfit(Node& node, const std::string& why);
  void EndUnfitness(Node& node);
  void NotePreparing(const Node& node, const std::vector<Preparing>& preparing);
  void Reconcile(Node& node, const std::vector<RunningAssignment>& running, uint64_t carried_out);
  // Its worker has not been told, or nobody knows whether it has.
  void AssignAgain(Job& job, Node& node);
  void LoseRanks(Node& node, const std::string& message, bool processes_gone);
  void Disconnect(Node& node);
  void PublishView(const Node& node);
  Node* NodeOf(SessionId session);
  // coordinator_commands.cc: commands and their results.
  void SendTo(Node& node, Command command);
  void Resend(Node& node, uint64_t carried_out);
  void On(const CommandFinished& event);
  void EndLeftovers(Node& node, const Command& command);
  void OnCommandFailed(const Node& node, const Command& command, const CommandFinished& result);
  void OnPrepared(Job& job, Team& team, const CommandFinished& result);
  void NoteChoice(Job& job, const std::optional<CommandFinished::Choice>& choice);
  void NoteDataShape(Job& job, const std::optional<job::DataShape>& shape);
  // coordinator_checks.cc: what checks of idle devices found.
  void NoteCheck(Node& node, const std::shared_ptr<const job::NodeCheck>& check);
  void ForgiveChecks(Node& node, const std::string& by);  // until the next one
  void StoreNode(Node& node);                             // its mark and what checks found
  void RestoreNodes(const std::vector<JournalRecord>& records);

  // coordinator_ranks.cc: what ranks report, failures, the end of runs.
  void On(const RankReported& event);
  void OnReport(Job& job, int32_t rank, const RendezvousEntry& entry);
  void OnReport(Job& job, int32_t rank, const RankReady& report);
  void OnReport(Job& job, int32_t rank, const RankSucceeded& report);
  void OnReport(Job& job, int32_t rank, const RankEvent& report);
  void OnReport(Job& job, int32_t rank, const EvaluationReport& report);
  void OnReport(Job& job, int32_t rank, const StepReport& report);
  // coordinator_progress.cc: jobs in which all wait and nobody gets any further.
  void NoteTrains(Job& job);  // all ranks are ready
  void NoteStep(Job& job, const StepReport& report);
  void NoteWait(Job& job, const NodeName& node, absl::Duration waits);
  void JudgeProgress(Job& job);
  // coordinator_recovery.cc
  void FailOfBudget(Job& job, FailureCause cause);
  void FailApart(Job& job, FailureCause cause);
  // From now on all its ranks are to say where their state stands.
  void AwaitQuiet(Job& job, const FailureCause& cause);
  void StartRecovery(Job& job, FailureCause cause);
  void PlanWithoutLost(Job& job);
  void LeaveOutAllThatCameBack(Job& job);
  void OnRecoveryPlanned(Job& job, const absl::StatusOr<PlanSummary>& plan);
  void OnReport(Job& job, int32_t rank, const RankQuiet& report);
  // Of the epoch that a recovery goes on from (coordinator_earlier.cc).
  void OnEarlierReport(Job& job, const RankReported& event);
  void OnReportOfBefore(Job& job, const RankReported& event);
  void OnEarlierReport(Job& job, Epoch epoch, const RankCheckpointPublished& report);
  // Begins the next epoch once all that are left have said where their state stands.
  void CheckQuiet(Job& job);
  void OnQuietDeadline(Job& job);
  void OnConnectDeadline(Job& job);
  void TellBegin(const Job& job, const Team& team);
  void TellBeginAgain(const Node& node);
  void CheckRecovered(Job& job);
  // Of an epoch that has begun, after all the time that they had.
  void LoseUnreadyRanks(Job& job);
  // After a restart of the coordinator.
  void ResumeRecovery(Job& job);
  // coordinator_incidents.cc: what befalls a job (incident.h).
  // What speaks for the verdict that follows.
  void NoteEvidence(Job& job, const FailureCause& cause);
  // Ranks are lost: begins an incident, or goes on with the one that is under way.
  void NoteVerdict(Job& job, const FailureCause& cause);
  void NoteReturn(Job& job);
  // How a rank ended that was left out before that was known.
  void NoteExit(Job& job, Epoch epoch, const FailureCause& ended);
  // Sets who is lost and who is back, as far as it is known.
  void NoteRanks(Job& job);
  void NoteWaiting(Job& job);
  void NotePlanned(Job& job, const PlanSummary& plan);
  void NoteBegan(Job& job, int64_t step);
  void NoteReady(Job& job, int32_t rank, const RankReady& report);
  // Of a return: the first rank has stopped for it.
  void NotePause(Job& job);
  void NoteResumed(Job& job);
  void NoteFirstStep(Job& job, int32_t rank);
  void OnReport(Job& job, int32_t rank, const RankSafe& report);
  // Whether all state has its homes again: `rank` has said so last.
  void NoteSafe(Job& job, int32_t rank);
  Incident& BeginIncident(Job& job, Incident::Kind kind, Instant detected);
  // Nothing more will be known of the one that is under way, if there is one.
  void CloseIncident(Job& job, const std::string& why);
  void StoreIncident(Job& job);
  // Has the files written that are to be.
  void TellIncidents(Job& job);
  // The event of the incident's verdict, unless it was told.
  void TellVerdict(Job& job);
  void SayVerdict(Job& job);
  void EndIncident(Job& job);
  void DropExits(Job& job, const Team& team);
  // After a restart of the coordinator.
  void ResumeIncident(Job& job);
  // coordinator_return.cc
  void PlanWithout(Job& job, const NodeName& unfit);
  // Has a layout planned with ranks that are back, if there are any. O(1) where none is away.
  void ConsiderReturn(Job& job);
  void PrepareReturn(Job& job, const Node& node, const std::set<int32_t>& ranks);
  void OnReturnPrepared(Job& job, const Node& node, const CommandFinished& result);
  // `mirrored`: as ComputePlan::Kept.
  void OnReturnPlanned(Job& job, bool mirrored, const absl::StatusOr<PlanSummary>& plan);
  // With `back`, and no more, ranks that train would take state with them.
  void RefuseReturn(Job& job, plan::RankList back, bool mirrored, const absl::Status& why);
  void NoteLostAgain(Job& job, int32_t rank, const NodeName& node);
  // coordinator_loans.cc: devices in reserve that are lent to jobs.
  // To all that lack some. O(1) where no node is in reserve and nothing is being lent.
  void LendDevices();
  void Lend(Job& job);
  // Gives up those whose place is not lost any more, or has its own device again, and those that do
  // not serve any more.
  void KeepLoans(Job& job);
  // There is no layout with these ranks, for `why`, as far as they are on devices that are lent:
  // others may do, where any does.
  void RefuseLoans(Job& job, const plan::RankList& back, const absl::Status& why);
  void GiveUpLoan(Job& job, int32_t place);
  void GiveUpLoans(Job& job);
  // Behind the record of a layout that has other devices than the one before, whose run is
  // `before`: what the job is not on any more is free, once nothing of `epoch` runs there.
  void GiveBackDevices(Job& job, const Run& before, Epoch epoch);
  // coordinator_standby.cc: communicators that are made before anybody is lost (standby.h).
  // Goes on with what is to be made of them, if the job has any. O(1) where there is nothing to do.
  void ConsiderStandby(Job& job);
  void OnStandbyPlanned(const PlanComputed& event);
  void OnStandbyDeadline(Job& job);
  // Says, once all are looked at, and again after the second try, which losses there are
  // communicators for and which there are not.
  void TellStandby(Job& job);
  void FailStandby(const Job& job, StandbySet& set, std::string error);
  void DropStandbyPlan(const Job& job);
  void OnReport(Job& job, int32_t rank, const RankStandby& report);
  // coordinator_wait.cc
  // What is left cannot go on: the job waits for what is lost.
  void WaitForLost(Job& job, const absl::Status& why);
  void BeginHold(Job& job, const absl::Status& why);
  // Plans with ranks that are back.
  void GoOnWith(Job& job, const plan::RankList& back);
  void OnHoldDeadline(Job& job);
  // Has the layout planned in which it is.
  void PlanSaving(Job& job);
  // After a restart of the coordinator.
  void ResumeSaving(Job& job);
  // It cannot be: the job ends as it was wished last.
  void EndSaving(Job& job, const std::string& how);
  // The job is queued again, or fails where there is no checkpoint. `how` its ranks ended.
  void EndHold(Job& job, const std::string& how);
  // Those that are left have not all of the state, nor copies of it, and there is no checkpoint:
  // what is lost may have copies, and is waited for.
  void WaitForState(Job& job, FailureCause cause);
  // It is starting, and no rank of its epoch has trained.
  void QueueAfterLoss(Job& job, FailureCause cause);
  // Its ranks are ended, its devices are free, and it begins again with its last checkpoint once it
  // has others. `in_order`: as PhaseChanged.
  void QueueAgain(Job& job, const std::string& reason, bool in_order = false);
  void GoBack(Job& job, FailureCause cause);
  void GoBackWithout(Job& job, FailureCause cause, std::set<int32_t> lost);
  void OrderGoBack(Job& job);
  bool PassOver(Job& job, const FailureCause& cause);
  void OnGoBackPlanned(Job& job, const absl::StatusOr<PlanSummary>& plan);
  // coordinator_copies.cc
  void AssignFromCopies(Job& job, const PlanSummary& plan, std::string standby = "");
  void OnReport(Job& job, int32_t rank, const RankCopies& report);
  // All ranks with work, and nodes without, are to say which there are.
  void AskForCopies(Job& job);
  // A process of theirs has ended, or could not begin: the epoch is planned again, or goes on
  // without.
  void LoseKeeper(Job& job, int32_t keeper, const std::string& why);
  // Nodes without work that have said nothing, cannot, or are gone, are done without.
  void LeaveOutKeeper(Job& job, int32_t keeper);
  void LeaveOutKeepers(Job& job);
  // Where nobody is awaited any more: what follows from what was said.
  void CheckCopies(Job& job);
  void BeginFromCopies(Job& job, const ChosenCopies& chosen);
  void TellBeginWithCopies(const Job& job, const Team& team);
  void ResumeFromCopies(Job& job);
  // What is to be known of ranks that are lost before they may return.
  void NoteLost(Job& job, const FailureCause& cause, const std::set<int32_t>& lost);
  // coordinator_early_end.cc
  // Its time limit, or how long its ranks may take to end, counts from now on.
  void WatchEnd(Job& job);
  void OnEndDeadline(Job& job);
  // Lets the job end with a checkpoint of its next step, or at once where it has none to write.
  void WishEnd(Job& job, EndWished wish);
  void TellWish(const Job& job, const Team& team);
  // A node is back: an order may have been lost with a coordinator before this one.
  void TellWishAgain(const Node& node);
  // All steps are done. It has failed where it was to have a checkpoint of the last one and has
  // not.
  void EndDone(Job& job);
  // As wished, whatever there is of its checkpoint.
  void EndEarly(Job& job, const EndWished& wish);
  void StayUnsaved(Job& job);  // of who was to leave
  void TrainOn(Job& job);
  void EndAs(Job& job, EndWished wish, const std::string& how);
  // coordinator_leave.cc: jobs that leave their devices in order, and wait in the queue.
  void On(const SuspensionRequested& event);
  void Suspend(Job& job, const std::string& by);
  void LeaveDevices(Job& job, const std::string& how);  // `how` its ranks ended
  void MakeRoomFor(const Job& job);  // preemptible jobs are asked to leave, if that is enough
  bool MayBeAsked(const Job& job) const;
  void ConsiderAsking(Job& job);
  // coordinator_drain.cc: nodes that are taken out of service.
  void On(const NodeMarkRequested& event);
  void On(const ReserveRequested& event);
  void Mark(Node& node, std::optional<NodeMark> mark, const std::string& by);
  // Stores and shows what has been decided of it, and tells its jobs: `what` behind its name.
  void StoreDecided(Node& node, const std::string& type, const std::string& what);
  void AnswerMarked(Token token, const Node& node, std::vector<JobOnNode> jobs = {});
  // nullptr: there is none, and the caller has been told.
  Node* NodeToMark(Token token, const NodeName& name);
  void NoteDrain(const Node& node);
  // Jobs that have devices of it are asked to leave.
  std::vector<JobOnNode> Drain(const Node& node, bool force);
  // Says what becomes of the job; `stays`: it does not leave.
  std::string LeaveNode(Job& job, const Node& node, bool force, bool& stays);
  void LeaveStoppingNode(const Node& node);  // its worker was asked to end
  void ConsiderDrain(Job& job);              // O(1) where no node drains
  // coordinator_slow.cc: devices that are slower than others with the same work.
  void NoteWork(const Node& node, const Progress& progress);
  void TellSlow(Job& job, const SlowRanks::Change& change);
  std::vector<std::string> ExplainSlow(const Job& job) const;
  // coordinator_pace.cc: samples dealt by which devices are slow.
  void BeginSlowness(Job& job);  // of its epoch
  void ConsiderPace(Job& job);
  void OnPacePlanned(Job& job, const plan::SlowPlaces& wanted,
                     const absl::StatusOr<PlanSummary>& plan);
  // Ranks were not connected: has the layout planned in which they trained.
  void GoBackToPace(Job& job);
  // coordinator_faults.cc: faults on demand.
  void On(const InjectRequested& event);
  absl::Status CheckInject(const InjectRequested& event) const;
  void OnInjected(const Node& node, const InjectFault& command, const CommandFinished& result);
  void RefuseInject(const InjectFault& command, const NodeName& node);
  // Those that the node has not answered: its session is gone.
  void RefuseInjects(const Node& node);
  // coordinator_reach.cc: whether nodes reach each other.
  void On(const ReachRequested& event);
  absl::Status CheckReach(const ReachRequested& event) const;
  void OnTried(TryPeer trial, const CommandFinished& result);
  void AnswerTrial(Token token, absl::StatusOr<std::string> fault);
  // Those whose node has not answered in time.
  void EndLateTrials(Instant judged);
  // Those that the node has not answered: its session is gone.
  void RefuseTrials(const Node& node);
  // coordinator_checkpoints.cc
  void OnReport(Job& job, int32_t rank, const RankCheckpointPart& report);
  void OnReport(Job& job, int32_t rank, const RankCheckpointPublished& report);
  // Has the first of those that are whole published, once the one before is.
  void PublishNext(Job& job);
  // Some ranks have not written the one of that step, and never will.
  void GiveUpWritten(Job& job, int64_t step);
  void TellPublish(const Job& job);
  // A node is back: an order may have been lost with a coordinator before this one. It bears
  // repetition.
  void TellPublishAgain(const Node& node);
  // Whether the job may end as far as its checkpoints go; else it gets a deadline.
  bool CheckpointsAreDone(Job& job);
  void OnPublishDeadline(Job& job);
  // Nobody is waited for any more who was to publish a checkpoint; the job may end with that.
  void EndPublishing(Job& job, const std::string& since);
  void GiveUpPublishing(Job& job, const std::string& since);
  void Prepare(Job& job, Team& team);
  void AssignAll(Job& job);
  void StartNextEpoch(Job& job);
  void FlushRendezvous(Job& job);
  void MarkRunning(Job& job);
  void CheckReady(Job& job);
  void CheckSucceeded(Job& job);
  // One that a rank came across; several may come across the same.
  void OnCorrupt(Job& job, int32_t rank, const std::string& message);
  // Records it unless it is known. False: the job has no room for its name.
  bool NoteCorrupt(Job& job, const std::string& message);
  // Fails the job if it has more corrupt samples than it allows, `unnamed` ones included.
  bool FailIfCorrupt(Job& job, const NodeName& node, int64_t unnamed);
  void End(Job& job, job::JobPhase phase, std::string reason, std::optional<FailureCause> failure,
           absl::Duration grace);
  void ReleaseTeam(Job& job, Team& team);
  void CheckReleased(Job& job, Team& team);
  // Lets the store keep a job that has ended and holds no device.
  void Archive(const Job& job);

  // coordinator_failures.cc: evidence, and what becomes of it.
  void OnReport(Job& job, int32_t rank, const RankError& report);
  void OnReport(Job& job, int32_t rank, const RankDied& report);
  void OnReport(Job& job, int32_t rank, const RankExited& report);
  // How a rank ended that was left out before that was known.
  void TellExit(Job& job, const RankReported& event);
  void Accuse(Job& job, Accusation accusation);
  void ConvictNodes(Job& job);
  // Of a job that has not ended, whatever it is: asks RemedyFor and carries that out.
  void OnFailure(Job& job, FailureCause cause);
  void Fail(Job& job, FailureCause cause);
  void FailOnceTold(Job& job, FailureCause cause, std::string why);
  void FailAsTold(Job& job, FailureCause cause, absl::string_view why);

  Job* FindJob(JobId id);

  const CoordinatorOptions options_;
  Instant now_ = absl::InfinitePast();
  std::vector<Action> actions_;  // of the step in progress
  std::map<JobId, Job> jobs_;
  std::set<QueuePlace> queue_;  // Queued and not being planned, in its order
  std::set<JobId> parked_;      // Queued and suspended
  PlanOrders plans_;
  std::optional<StandbyPlan> standby_plan_;  // the one that is being made, of all jobs
  // Since the last Schedule that found a free device: what queued jobs wait for, by the nodes that
  // they match. So a submit looks at the new job alone.
  std::map<LineKey, Line> lines_;
  std::map<NodeName, Instant> closed_;  // nodes that the first of a line waits for, until when
  int32_t backfills_ = 0;  // jobs behind the first of their line that were looked at for a place
  uint64_t jobs_considered_ = 0;
  Owners owners_;
  std::set<JobId> active_;  // with a run
  std::map<std::string, JobId> request_ids_;
  std::map<std::string, JobId> live_names_;
  int64_t live_request_bytes_ = 0;
  std::map<std::string, int64_t> owner_request_bytes_;  // of these, by owner
  JobId last_job_;
  NodeTable nodes_;
  std::set<NodeName> heard_again_;  // were suspect, and their jobs are to be told
  std::set<NodeName> drained_;      // those that drain
  std::set<NodeName> reserved_;     // those in reserve
  std::set<JobId> borrowing_;       // jobs for which devices in reserve are held
  Agenda<NodeName> node_agenda_;
  Agenda<JobId> run_agenda_;
  Agenda<Token> trial_agenda_;
  std::map<SessionId, std::pair<NodeName, Incarnation>> sessions_;
  uint64_t last_record_ = 0;
  uint64_t stored_record_ = 0;
  HeldActions held_;
  std::set<JobId> spared_;  // have a step, or dropped events, that were not told
  uint64_t fetch_count_ = 0;
  std::map<Token, NodeName> trials_;  // of nodes with each other, whose callers wait: who is asked
  bool capacity_changed_ = false;     // the queue is to be looked at anew
  Instant look_ = absl::InfiniteFuture();  // it is to be then, for those that were submitted
  Instant last_look_ = absl::InfinitePast();
};

}  // namespace phalanx::coordinator

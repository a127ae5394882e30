// Evidence of failures, and what becomes of it (evidence.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"
#include "coordinator/machine/policy.h"
#include "core/base/cut_text.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;

std::string SignalName(int32_t signal) {
  switch (signal) {
    case 4:
      return "SIGILL";
    case 6:
      return "SIGABRT";
    case 7:
      return "SIGBUS";
    case 8:
      return "SIGFPE";
    case 9:
      return "SIGKILL";
    case 11:
      return "SIGSEGV";
    case 15:
      return "SIGTERM";
    default:
      return absl::StrCat("signal ", signal);
  }
}

// Of a cause, which may list many things: beyond it is cut.
constexpr size_t kCauseBytesMax = 16 << 10;

// Signals that a process brings upon itself.
bool IsCrash(int32_t signal) {
  return signal == 4 || signal == 6 || signal == 7 || signal == 8 || signal == 11;
}

// "was killed by signal 9 (SIGKILL)".
std::string HowItEnded(const RankExited& report) {
  if (report.expected) return "was ended by its worker";
  if (report.signal != 0) {
    return absl::StrCat("was killed by signal ", report.signal, " (", SignalName(report.signal),
                        ")");
  }
  return absl::StrCat("exited with code ", report.exit_code, " before its last step");
}

// Whether its ranks, of which none is ready, may have missed what others said for them.
bool MayHaveMissedOthers(const Run& run) {
  return std::none_of(run.ranks.begin(), run.ranks.end(),
                      [](const RankState& rank) { return rank.used && rank.ready; }) &&
         std::any_of(run.teams.begin(), run.teams.end(),
                     [](const Team& team) { return team.seen; });
}

bool IsOfPeers(FailureKind kind) {
  return kind == FailureKind::kPeerLost || kind == FailureKind::kNodeUnreachable;
}

// The epoch is over as one is that a node refuses. What others say of their peers after that, and
// how they end of it, follows from the same. False: it was given up before.
bool GiveUpStart(Run& run, Epoch epoch) {
  run.settle_deadline = absl::InfiniteFuture();
  if (run.epoch_seen >= epoch) return false;
  run.epoch_seen = epoch;
  return true;
}

bool IsOfCheckpoint(FailureKind kind) {
  return kind == FailureKind::kCheckpointUnavailable || kind == FailureKind::kCheckpointInvalid;
}

// Whether no rank with work is left that was not left out before: if these stay out, nobody is in.
bool AllAreBack(const Run& run, const Recovery& recovery) {
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    if (run.ranks[rank].used && !recovery.back.contains(static_cast<int32_t>(rank))) return false;
  }
  return true;
}

FailureKind KindOf(const RankExited& report) {
  if (report.expected) return FailureKind::kNodeStopped;
  if (report.signal == 0) return FailureKind::kRankExited;
  return IsCrash(report.signal) ? FailureKind::kRankCrashed : FailureKind::kRankKilled;
}

// How long better evidence is waited for. Ranks by choice that do not find each other again and
// again try less and less often, at least every 40 s.
absl::Duration SettleDelay(const LiveJob& job, absl::Duration delay) {
  // Nothing else ends their tries.
  constexpr int32_t kDoublingsMax = 7;
  const int32_t tries =
      job.recovery.has_value() && job.recovery->by_choice ? job.recovery->tries - kTriesMax : 0;
  return delay * (1 << std::clamp(tries, 0, kDoublingsMax));
}

}  // namespace

void Coordinator::OnReport(Job& job, int32_t rank, const RankError& report) {
  if (job.state.IsTerminal() || job.run->ranks[static_cast<size_t>(rank)].succeeded) return;
  if (!job.run->ranks[static_cast<size_t>(rank)].used) return LoseKeeper(job, rank, report.message);
  if (report.kind == FailureKind::kPeerLost) {
    return Accuse(job, {.reporter = rank, .accused = report.accused, .message = report.message});
  }
  FailureCause cause =
      CauseOf(now_, job, rank, report.kind, absl::StrCat("rank ", rank, ": ", report.message));
  if (report.kind == FailureKind::kStateLost) {  // who misses it is not to blame
    cause.rank = -1;
    cause.node.clear();
  }
  OnFailure(job, std::move(cause));
}

void Coordinator::Accuse(Job& job, Accusation accusation) {
  Run& run = *job.run;
  if (run.failing.has_value()) return;
  std::vector<Accusation>& known = run.accusations;
  if (std::any_of(known.begin(), known.end(),
                  [&](const Accusation& a) { return a.reporter == accusation.reporter; })) {
    return;
  }
  if (accusation.accused == accusation.reporter || run.TeamOfRank(accusation.accused) == nullptr) {
    accusation.accused = -1;
  }
  if (known.empty()) run.accused_at = now_;
  known.push_back(std::move(accusation));
  if (known.size() == 1 && !run.accuser_killed.has_value())
    SetDeadline(job, run.settle_deadline, SettleDelay(job, options_.settle_delay));
  ConvictNodes(job);
}

void Coordinator::ConvictNodes(Job& job) {
  if (job.state.IsTerminal() || job.run->accusations.empty()) return;
  const std::set<NodeName> broken = BrokenNodes(nodes_, job);
  if (ConvictedNode(*job.run, broken) == nullptr) return;
  FailureCause cause = VerdictOf(*job.run, broken);
  if (job.recovery.has_value() && AccusesWhoTrains(*job.recovery, cause)) return;
  cause.time = now_;
  OnFailure(job, std::move(cause));
}

void Coordinator::SettleAnew(const Node& node) {
  for (JobId id : active_) {
    Job& job = jobs_.at(id);
    if (job.run->accusations.empty() || job.run->TeamOf(node.name) == nullptr) continue;
    if (now_ + options_.settle_delay < job.run->settle_deadline) {
      SetDeadline(job, job.run->settle_deadline, options_.settle_delay);
    }
  }
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankDied&) {
  Run& run = *job.run;
  const RankState& state = run.ranks[static_cast<size_t>(rank)];
  if (job.state.IsTerminal() || state.succeeded || !state.used) return;
  // Of one that lost a peer the exit says whether it ended of that.
  if (std::any_of(run.accusations.begin(), run.accusations.end(),
                  [rank](const Accusation& a) { return a.reporter == rank; })) {
    return;
  }
  FailureCause cause = CauseOf(now_, job, rank, FailureKind::kRankKilled, "");
  cause.message = absl::StrCat("rank ", rank, " on node ", cause.node, " died");
  if (MayRecover(job)) return OnFailure(job, std::move(cause));
  if (run.accuser_killed.has_value()) return;
  run.accuser_killed = std::move(cause);
  SetDeadline(job, run.settle_deadline, options_.exit_timeout);
}

void Coordinator::TellExit(Job& job, const RankReported& event) {
  const std::pair<Epoch, int32_t> process(event.epoch, event.rank);
  if (std::holds_alternative<RankDied>(event.report) && MayRecover(job))
    job.exits_awaited.insert(process);
  const auto* exited = std::get_if<RankExited>(&event.report);
  if (exited == nullptr || job.exits_awaited.erase(process) == 0 || job.state.IsTerminal()) return;
  FailureCause ended = CauseOf(now_, job, event.rank, KindOf(*exited), "");
  ended.exit_code = exited->exit_code;
  ended.signal = exited->signal;
  ended.message =
      absl::StrCat("rank ", event.rank, " on node ", ended.node, " ", HowItEnded(*exited));
  const std::string with_log = exited->log_tail.empty()
                                   ? ended.message
                                   : absl::StrCat(ended.message, "\n", exited->log_tail);
  const auto take = [&ended](FailureCause& cause, const std::string& text) {
    cause.kind = ended.kind;
    cause.exit_code = ended.exit_code;
    cause.signal = ended.signal;
    cause.message = text;
  };
  if (job.run->failing.has_value() && job.run->failing->cause.rank == event.rank) {
    Run::Failing failing = *std::exchange(job.run->failing, std::nullopt);
    take(failing.cause, with_log);
    NoteExit(job, event.epoch, ended);
    return FailAsTold(job, std::move(failing.cause), failing.why);
  }
  const plan::RankList& lost = job.state.layout->lost;
  const bool left_out = event.epoch < job.state.epoch ||
                        std::find(lost.begin(), lost.end(), Rank{event.rank}) != lost.end() ||
                        (job.recovery.has_value() && job.recovery->lost.contains(event.rank));
  if (!left_out) return;  // its exit is the evidence
  if (job.recovery.has_value() && job.recovery->cause.rank == event.rank)
    take(job.recovery->cause, ended.message);
  NoteExit(job, event.epoch, ended);
  Commit(job, EventRecorded{"RankExited", with_log, event.epoch});
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankExited& report) {
  Run& run = *job.run;
  const RankState& state = run.ranks[static_cast<size_t>(rank)];
  if (job.recovery.has_value()) job.recovery->silent.erase(rank);
  if (job.state.IsTerminal()) return CheckReleased(job, *run.TeamOfRank(rank));
  const std::optional<CheckpointWritten>& publishing = job.state.publishing;
  if (state.succeeded && publishing.has_value() && publishing->rank == rank)
    return EndPublishing(job, absl::StrCat("it ", HowItEnded(report)));
  if (state.succeeded || !state.used) return;
  const auto accuser = std::find_if(run.accusations.begin(), run.accusations.end(),
                                    [rank](const Accusation& a) { return a.reporter == rank; });
  const bool accuses = accuser != run.accusations.end();
  // A rank that lost a peer may end of it.
  if (accuses && (report.expected || report.signal == 0 || run.accuser_killed.has_value())) return;
  FailureCause cause = CauseOf(now_, job, rank, KindOf(report), "");
  cause.exit_code = report.exit_code;
  cause.signal = report.signal;
  cause.message = absl::StrCat("rank ", rank, " on node ", cause.node, " ", HowItEnded(report));
  if (accuses) absl::StrAppend(&cause.message, "; before that, ", Sentence(run, *accuser));
  if (!report.log_tail.empty()) absl::StrAppend(&cause.message, "\n", report.log_tail);
  // Its peer may have gone first all the same, and who saw that is still to be heard.
  if (accuses) {
    run.accuser_killed = std::move(cause);
    return;
  }
  OnFailure(job, std::move(cause));
}

void Coordinator::OnFailure(Job& job, FailureCause cause) {
  if (job.state.IsTerminal()) return;
  if (job.run.has_value() && job.run->failing.has_value()) return;
  if (IsOfCheckpoint(cause.kind) && PassOver(job, cause)) return;
  static const Run kNoRun;
  const Loss loss{cause.kind, cause.node};
  const bool starts = job.state.phase == job::JobPhase::kStarting && job.run.has_value();
  const JobRequest& request = *job.state.request;
  const Policy policy{
      .may_recover = MayRecover(job),
      .may_go_back = MayGoBack(job) || MayTakeCopies(nodes_, job),
      .may_queue = starts && job.state.trained,
      .may_start_elsewhere =
          starts &&
          (request.waits || CapacityWithout(nodes_, request, cause.node) >= request.devices),
      .may_start_anew = starts && MayHaveMissedOthers(*job.run)};
  const Remedy remedy =
      RemedyFor(policy, job.run.has_value() ? *job.run : kNoRun, {&loss, 1}, nodes_);
  NoteEvidence(job, cause);
  // Who comes back can do no harm but stay out, nor can whoever makes room for it.
  if (MayRecover(job) && job.recovery.has_value() && cause.kind != FailureKind::kStateLost &&
      !(IsOfCheckpoint(cause.kind) && AllAreBack(*job.run, *job.recovery)) &&
      (job.recovery->back.contains(cause.rank) || MetWhileConnecting(*job.recovery, cause))) {
    return StartRecovery(job, std::move(cause));
  }
  constexpr absl::string_view kCourseNames[] = {"fail",    "wait",    "start_anew",
                                                "recover", "go_back", "queue"};
  Log(absl::StrCat("job=", job.state.id.value, " epoch=", job.state.epoch.value,
                   " failure=", job::ToString(cause.kind),
                   cause.node.empty() ? "" : absl::StrCat(" node=", cause.node),
                   " course=", kCourseNames[static_cast<size_t>(remedy.course)], " reason=\"",
                   remedy.reason, "\""));
  // Copies that may come back with what is lost save more steps than the beginning does.
  const bool begins_anew = remedy.course == Course::kGoBack && !MayTakeCopies(nodes_, job) &&
                           !LastCheckpoint(job).has_value() && job.last_step.has_value();
  if (begins_anew && MayWaitForState(job)) return WaitForState(job, std::move(cause));
  switch (remedy.course) {
    case Course::kWait:
      if (!job.run.has_value()) {
        Enqueue(job);
        capacity_changed_ = true;
      } else if (Team* team = job.run->TeamOf(cause.node)) {
        PrepareAnew(job, *team, std::move(cause));
      }
      return;
    case Course::kStartAnew:
      if (IsOfPeers(cause.kind) && GiveUpStart(*job.run, job.state.epoch))
        Commit(job, EventRecorded{"StartGivenUp", cause.message, job.state.epoch});
      return StartNextEpoch(job);
    case Course::kRecover:
      return StartRecovery(job, std::move(cause));
    case Course::kGoBack:
      return GoBack(job, std::move(cause));
    case Course::kQueue:
      return QueueAfterLoss(job, std::move(cause));
    case Course::kFail:
      // As it is wished, unless this is that.
      if (IsSaving(job) && job.state.ending->wish.failure != cause.kind)
        return EndSaving(job, cause.message);
      // It would go back, and does so once it goes on.
      if (cause.kind == FailureKind::kStateLost && Leaves(job) && job.state.request->restarts &&
          StepToGoBackTo(job).has_value()) {
        return EndAs(job, job.state.ending->wish, cause.message);
      }
      if (cause.kind == FailureKind::kStateLost && MayWaitForState(job))
        return WaitForState(job, std::move(cause));
      return Fail(job, std::move(cause));
  }
}

// A death is known before how the process ended, which is the better cause.
void Coordinator::FailOnceTold(Job& job, FailureCause cause, std::string why) {
  if (!IsUntold(job, cause)) return FailAsTold(job, std::move(cause), why);
  job.run->EndJudging();
  job.returning.clear();
  DropPlanning(job);
  DropStandbyPlan(job);
  job.run->failing.emplace(Run::Failing{std::move(cause), std::move(why)});
  SetDeadline(job, job.run->fail_deadline, options_.exit_timeout);
}

void Coordinator::FailAsTold(Job& job, FailureCause cause, absl::string_view why) {
  AddReason(why, cause.message);
  Fail(job, std::move(cause));
}

void Coordinator::Fail(Job& job, FailureCause cause) {
  cause.message = CutText(std::move(cause.message), kCauseBytesMax);
  if (job.state.phase == job::JobPhase::kRunning && job.run.has_value()) {
    const bool under_way = job.incident.has_value() &&
                           !job.incident->Has(Incident::Phase::kFirstStep) &&
                           job.incident->kind == Incident::Kind::kLoss;
    // Of another cause than that of the loss that is recovered from it is an incident of its own.
    const bool of_it = under_way && job.incident->cause.kind == cause.kind &&
                       job.incident->cause.rank == cause.rank;
    if (under_way && !of_it) CloseIncident(job, "the job has failed");
    if (!of_it) NoteVerdict(job, cause);
  }
  const bool of_node =
      cause.kind == FailureKind::kNodeLost || cause.kind == FailureKind::kNodeUnreachable;
  if (of_node || cause.rank >= 0) {
    Commit(job, EventRecorded{of_node ? std::string(job::ToString(cause.kind)) : "RankFailed",
                              cause.message, job.state.epoch});
  }
  CloseIncident(job, "the job has failed");
  const std::vector<std::string> lines = absl::StrSplit(cause.message, absl::MaxSplits('\n', 1));
  std::string reason = absl::StrCat(job::ToString(cause.kind), ": ", lines.front());
  End(job, job::JobPhase::kFailed, std::move(reason), std::move(cause), options_.failure_grace);
}

}  // namespace phalanx::coordinator

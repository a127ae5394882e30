// What befalls a job, gathered while it happens (incident.h).
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

using Phase = Incident::Phase;

// Its device on its node; -1: there is no such rank.
int32_t DeviceOf(const Run& run, int32_t rank) {
  const Team* team = rank < 0 ? nullptr : run.TeamOfRank(rank);
  return team == nullptr ? -1 : team->DeviceOf(rank);
}

// What stands still does so before that is found: at most since the last step, and no longer than
// it takes to find a rank that does (hang_timeout_min of worker/agent/machine).
Instant StandsStillSince(const LiveJob& job, const FailureCause& cause, Instant now) {
  constexpr absl::Duration kHungAtLeast = absl::Seconds(5);
  if (cause.kind == job::FailureKind::kNoProgress) return job.run->stepped_at;
  if (cause.kind != job::FailureKind::kRankHung) return now;
  const absl::Duration step = job.step_times.Slow().value_or(absl::ZeroDuration());
  return std::max(job.run->stepped_at, now - std::max(kHungAtLeast, 10 * step));
}

// What the coordinator before this one knew, which no recovery of this one does. Of a layout since,
// who was lost is back unless it lacks it; spares that took over stay so.
void TakeRanksOfBefore(const LiveJob& job, std::set<int32_t>& lost, std::set<int32_t>& returned) {
  const Incident& incident = *job.incident;
  lost.insert(incident.lost.begin(), incident.lost.end());
  returned.insert(incident.returned.begin(), incident.returned.end());
  const bool waits = job.recovery.has_value() && job.recovery->stage == Recovery::Stage::kWaiting;
  const plan::RankList& without = job.state.layout->lost;
  for (const int32_t rank : incident.lost) {
    const bool is_without = std::find(without.begin(), without.end(), Rank{rank}) != without.end();
    if (is_without || waits || returned.contains(rank)) continue;
    lost.erase(rank);
    returned.insert(rank);
  }
}

}  // namespace

void Coordinator::NoteEvidence(Job& job, const FailureCause& cause) {
  Job::Evidence& evidence = job.evidence.emplace(Job::Evidence{.since = now_});
  if (!job.run.has_value()) return;
  const std::vector<Accusation>& accusations = job.run->accusations;
  evidence.accused = !accusations.empty();
  if (evidence.accused) evidence.since = std::min(evidence.since, job.run->accused_at);
  const auto node = nodes_.find(cause.node);
  const bool away = cause.kind == job::FailureKind::kNodeLost && node != nodes_.end() &&
                    !node->second.connected() && node->second.incarnation != Incarnation{};
  if (away) evidence.since = std::min(evidence.since, node->second.disconnected_at);
  // What stood still, or was silent, did so before it was found.
  const bool silent = cause.kind == job::FailureKind::kNodeLost && node != nodes_.end() &&
                      node->second.connected() && !evidence.accused;
  if (silent) evidence.since = std::min(evidence.since, node->second.quiet_since());
  evidence.since = std::min(evidence.since, StandsStillSince(job, cause, now_));
  evidence.lines.push_back(cause.message);
  // Beside a cause of its own a rank that cannot say whom it lost only tells what followed.
  const bool of_peers =
      cause.kind == job::FailureKind::kPeerLost || cause.kind == job::FailureKind::kNodeUnreachable;
  for (const Accusation& accusation : accusations) {
    if (evidence.lines.size() == kEvidenceMax) break;
    if (accusation.accused < 0 && !of_peers) continue;
    evidence.lines.push_back(Sentence(*job.run, accusation));
  }
}

Incident& Coordinator::BeginIncident(Job& job, Incident::Kind kind, Instant detected) {
  const std::vector<IncidentPtr>& known = job.state.incidents;
  const int64_t number = known.empty() ? 1 : known.back()->number + 1;
  CloseIncident(job, absl::StrCat("incident ", number, " came before"));
  job.verdict_told.clear();
  job.verdict_waits = false;
  job.resumed_without.reset();
  return job.incident.emplace(Incident{.number = number,
                                       .kind = kind,
                                       .from = job.state.epoch,
                                       .to = job.state.epoch,
                                       .detected = detected,
                                       .device_kind = job.state.request->device_kind});
}

void Coordinator::NoteVerdict(Job& job, const FailureCause& cause) {
  const Job::Evidence evidence =
      std::exchange(job.evidence, std::nullopt).value_or(Job::Evidence{.since = now_});
  // Nobody has stopped for a return that is under way.
  const bool in_time = job.incident.has_value() && job.incident->kind == Incident::Kind::kReturn &&
                       !(*job.incident)[Phase::kSurvivorsQuiet].begin.has_value();
  const bool under_way =
      job.incident.has_value() && !job.incident->Has(Phase::kFirstStep) && !in_time;
  if (!under_way) BeginIncident(job, Incident::Kind::kLoss, evidence.since);
  Incident& incident = *job.incident;
  if (under_way) Reopen(incident);
  // The first cause names it; ranks that were on their way back have none, nor is anybody named
  // where nobody got any further, until somebody is.
  const bool names = incident.cause.kind == job::FailureKind::kNoProgress && cause.rank >= 0;
  if (!under_way || names || incident.kind == Incident::Kind::kReturn) {
    incident.kind = Incident::Kind::kLoss;
    incident.cause = cause;
    incident.cause.message = cause.message.substr(0, cause.message.find('\n'));
    incident.device = DeviceOf(*job.run, cause.rank);
    incident.confidence = ConfidenceOf(cause, evidence.accused);
  }
  for (const std::string& line : evidence.lines) AddEvidence(incident, line);
  if (!incident.Has(Phase::kDetected)) {
    BeginPhase(incident, Phase::kDetected, evidence.since);
    EndPhase(incident, Phase::kDetected, now_);
  }
  BeginPhase(incident, Phase::kPlanned, now_);
  BeginPhase(incident, Phase::kSurvivorsQuiet, now_);
  StoreLastStep(job);  // a coordinator behind this one may have to say which are redone
  StoreIncident(job);
}

void Coordinator::NoteReturn(Job& job) {
  Incident& incident = BeginIncident(job, Incident::Kind::kReturn, now_);
  BeginPhase(incident, Phase::kDetected, now_);
  EndPhase(incident, Phase::kDetected, now_);
  BeginPhase(incident, Phase::kPlanned, now_);
}

void Coordinator::NotePause(Job& job) {
  if (job.incident.has_value()) BeginPhase(*job.incident, Phase::kSurvivorsQuiet, now_);
}

void Coordinator::NoteExit(Job& job, Epoch epoch, const FailureCause& ended) {
  // The newest that began with that death; another one may have begun meanwhile.
  const auto is_of_it = [&](const Incident& incident) {
    return incident.kind == Incident::Kind::kLoss && incident.cause.rank == ended.rank &&
           IsDeathAlone(incident.cause) && incident.from <= epoch &&
           epoch <= std::max(incident.from, incident.to);
  };
  const std::vector<IncidentPtr>& known = job.state.incidents;
  const auto found = std::find_if(known.rbegin(), known.rend(),
                                  [&](const IncidentPtr& incident) { return is_of_it(*incident); });
  const bool open = job.incident.has_value() && is_of_it(*job.incident);
  if (!open && found == known.rend()) {
    // It is evidence beside the first cause.
    if (job.incident.has_value() &&
        std::binary_search(job.incident->lost.begin(), job.incident->lost.end(), ended.rank)) {
      AddEvidence(*job.incident, ended.message);
      StoreIncident(job);
    }
    return;
  }
  Incident incident = open ? *job.incident : **found;
  incident.cause.kind = ended.kind;
  incident.cause.signal = ended.signal;
  incident.cause.exit_code = ended.exit_code;
  incident.cause.message = ended.message;
  incident.confidence = ConfidenceOf(incident.cause, /*accused=*/false);
  AddEvidence(incident, ended.message);
  if (incident.Has(Phase::kFirstStep)) job.incidents_unwritten.insert(incident.number);
  const bool newest = open || (*found)->number == known.back()->number;
  std::optional<Incident> other = std::exchange(job.incident, std::move(incident));
  StoreIncident(job);
  if (newest && std::exchange(job.verdict_waits, false)) TellVerdict(job);
  if (!open) job.incident = std::move(other);
  TellIncidents(job);
}

void Coordinator::NoteRanks(Job& job) {
  Incident& incident = *job.incident;
  std::set<int32_t> lost, returned;
  if (job.resumed_without.has_value()) TakeRanksOfBefore(job, lost, returned);
  if (job.recovery.has_value()) {
    const Recovery& recovery = *job.recovery;
    for (const int32_t rank : recovery.lost) {
      // Of a layout that was there before: lost in another incident, or not to be in any.
      const bool is_old = job.resumed_without.has_value() && !lost.contains(rank) &&
                          job.resumed_without->contains(rank);
      if (is_old) continue;
      lost.insert(rank);
      returned.erase(rank);
    }
    for (const int32_t rank : recovery.back) {
      if (returned.insert(rank).second) lost.erase(rank);
    }
    // Those that spares have taken over from were lost and are there again.
    lost.insert(recovery.spared.begin(), recovery.spared.end());
  }
  incident.lost.assign(lost.begin(), lost.end());
  incident.returned.assign(returned.begin(), returned.end());
}

void Coordinator::NoteWaiting(Job& job) {
  if (!job.incident.has_value()) return;
  const Incident before = *job.incident;
  NoteRanks(job);
  if (!(before == *job.incident)) StoreIncident(job);
}

void Coordinator::NotePlanned(Job& job, const PlanSummary& plan) {
  if (!job.incident.has_value()) return;
  Incident& incident = *job.incident;
  incident.to = job.state.epoch;
  incident.standby = !job.state.standby.empty();
  incident.changes = plan::Joined(incident.changes, plan.changes);
  incident.not_safe = plan.single_home;
  NoteRanks(job);
  EndPhase(incident, Phase::kPlanned, now_);
  BeginPhase(incident, Phase::kCommunicatorsReady, now_);
  StoreIncident(job);
}

void Coordinator::NoteBegan(Job& job, int64_t step) {
  if (!job.incident.has_value()) return;
  Incident& incident = *job.incident;
  incident.decided_step = step;
  // A loss breaks a step off, on who is lost at least. A return breaks none off where all that
  // train leave behind the same one. Who knows of a step, and not what he began, is of the release
  // before.
  int64_t begun = step + 1;
  if (incident.kind == Incident::Kind::kReturn && job.recovery.has_value()) {
    int64_t told = 0;
    for (const auto& [rank, quiet] : job.recovery->quiets) {
      const bool older = quiet.begun == 0 && quiet.known.decision.has_value();
      told = std::max(told, older ? step + 1 : quiet.begun);
    }
    if (told > 0) begun = told;
  }
  if (job.last_step.has_value()) begun = std::max(begun, job.last_step->step);
  const int64_t last = std::min(begun, job.state.request->steps);
  incident.steps_redone = std::max<int64_t>(0, last - step);
  EndPhase(incident, Phase::kSurvivorsQuiet, now_);
  BeginPhase(incident, Phase::kStateMoved, now_);
  BeginPhase(incident, Phase::kSafeAgain, now_);
  StoreIncident(job);
}

// The rank counts from when it got the assignment, which is so long ago as it took to be ready.
void Coordinator::NoteReady(Job& job, int32_t rank, const RankReady& report) {
  const bool again = job.run->ranks[static_cast<size_t>(rank)].ready;
  if (!job.incident.has_value() || !job.recovery.has_value() || again) return;
  Incident& incident = *job.incident;
  const Instant assigned = now_ - absl::Seconds(report.ready);
  if (report.ready > 0) {
    const Instant has_state = assigned + absl::Seconds(report.state);
    ExtendPhase(incident, Phase::kCommunicatorsReady, assigned + absl::Seconds(report.connected),
                rank);
    ExtendPhase(incident, Phase::kStateMoved, has_state, rank);
    BeginPhase(incident, Phase::kResumed, has_state);
    std::optional<int64_t>& begin = incident[Phase::kResumed].begin;
    begin = std::min(*begin, absl::ToInt64Microseconds(has_state - incident.detected));
  }
  ExtendPhase(incident, Phase::kResumed, now_, rank);
}

// All ranks are ready.
void Coordinator::NoteResumed(Job& job) {
  if (!job.incident.has_value()) return;
  Incident& incident = *job.incident;
  if (job.recovery.has_value() || job.resumed_without.has_value()) NoteRanks(job);
  if (job.recovery.has_value()) {
    EndPhase(incident, Phase::kResumed, now_, incident[Phase::kResumed].slowest);
    BeginPhase(incident, Phase::kFirstStep, now_);
  }
  const std::string summary = Summary(incident);
  StoreIncident(job);
  if (!incident.lost.empty() || incident.returned.empty())
    Commit(job, EventRecorded{"Recovered", summary, job.state.epoch});
  const bool returns =
      std::any_of(incident.returned.begin(), incident.returned.end(), [&incident](int32_t rank) {
        return !std::binary_search(incident.lost.begin(), incident.lost.end(), rank);
      });
  if (returns) Commit(job, EventRecorded{"Returned", summary, job.state.epoch});
  TellVerdict(job);
}

void Coordinator::TellVerdict(Job& job) {
  if (!job.incident.has_value() || job.incident->kind != Incident::Kind::kLoss) return;
  if (IsUntold(job, job.incident->cause)) {  // how it ended is a better verdict
    job.verdict_waits = true;
    return;
  }
  SayVerdict(job);
}

void Coordinator::SayVerdict(Job& job) {
  job.verdict_waits = false;
  std::string verdict = Verdict(*job.incident);
  if (job.verdict_told == verdict) return;
  job.verdict_told = verdict;
  Commit(job, EventRecorded{"Verdict", std::move(verdict), job.state.epoch});
}

void Coordinator::NoteFirstStep(Job& job, int32_t rank) {
  job.reporter = rank;
  if (job.recovery.has_value()) return;
  // Until there is a layout without who is lost, steps are of the one before.
  const bool awaited = job.incident.has_value() && job.incident->Has(Phase::kPlanned) &&
                       !job.incident->Has(Phase::kFirstStep);
  if (awaited) {
    EndPhase(*job.incident, Phase::kFirstStep, now_);
    // A coordinator before this one did not live to say so.
    if (!job.incident->Has(Phase::kResumed)) NoteResumed(job);
    job.incidents_unwritten.insert(job.incident->number);
    NoteSafe(job, -1);
    StoreIncident(job);
    if (job.incident->IsClosed()) EndIncident(job);
  }
  TellIncidents(job);
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankSafe& report) {
  if (job.state.IsTerminal()) return;
  job.run->ranks[static_cast<size_t>(rank)].safe = true;
  if (!job.incident.has_value()) return;
  if (!report.why_not.empty() && job.incident->not_safe.empty())
    job.incident->not_safe = absl::StrCat("rank ", rank, ": ", report.why_not);
  const bool was_closed = job.incident->IsClosed();
  NoteSafe(job, rank);
  if (was_closed || !job.incident->IsClosed()) return;
  job.incidents_unwritten.insert(job.incident->number);
  StoreIncident(job);
  EndIncident(job);
  TellIncidents(job);
}

void Coordinator::NoteSafe(Job& job, int32_t rank) {
  Incident& incident = *job.incident;
  if (!incident.not_safe.empty() || incident.Has(Phase::kSafeAgain)) return;
  if (!incident[Phase::kSafeAgain].begin.has_value()) return;
  if (!job.run->AllSafe()) return;
  EndPhase(incident, Phase::kSafeAgain, now_, rank);
}

void Coordinator::CloseIncident(Job& job, const std::string& why) {
  if (!job.incident.has_value()) return;
  if (!job.incident->Has(Phase::kSafeAgain) && job.incident->not_safe.empty())
    job.incident->not_safe = why;
  job.incidents_unwritten.insert(job.incident->number);
  StoreIncident(job);
  if (!job.incident->Has(Phase::kResumed) && !job.incident->Has(Phase::kFirstStep))
    TellVerdict(job);
  EndIncident(job);
}

void Coordinator::EndIncident(Job& job) {
  if (job.verdict_waits) SayVerdict(job);  // as far as it is known
  job.incident.reset();
}

// Nobody tells any more how processes of the team's ranks ended that have died.
void Coordinator::DropExits(Job& job, const Team& team) {
  std::erase_if(job.exits_awaited,
                [&team](const auto& process) { return team.Has(process.second); });
  if (job.verdict_waits && job.incident.has_value()) TellVerdict(job);
}

void Coordinator::StoreIncident(Job& job) {
  const auto incident = std::make_shared<const Incident>(*job.incident);
  Commit(job, IncidentNoted{incident});
  Tell(job, Action(PublishIncident{job.state.id, incident}));
}

void Coordinator::TellIncidents(Job& job) {
  if (job.incidents_unwritten.empty() || !job.run.has_value() || job.recovery.has_value()) return;
  const Team* team = job.reporter < 0 ? nullptr : job.run->TeamOfRank(job.reporter);
  if (team == nullptr || !job.run->ranks[static_cast<size_t>(job.reporter)].used) return;
  const auto node = nodes_.find(team->node);
  if (node == nodes_.end() || job.state.request->output.empty()) return;
  const std::set<int64_t> numbers = std::exchange(job.incidents_unwritten, {});
  for (const IncidentPtr& incident : job.state.incidents) {
    if (!numbers.contains(incident->number)) continue;
    Tell(job, NodeCommand{team->node, node->second.incarnation,
                          WriteIncident{.job = job.state.id,
                                        .epoch = job.state.epoch,
                                        .rank = job.reporter,
                                        .output = job.state.request->output,
                                        .incident = incident}});
  }
}

void Coordinator::ResumeIncident(Job& job) {
  const std::vector<IncidentPtr>& known = job.state.incidents;
  if (job.state.phase != job::JobPhase::kRunning || known.empty()) return;
  const bool is_over = known.back()->number <= job.state.incidents_over;
  if (is_over || known.back()->IsClosed()) return;
  job.incident = *known.back();
  std::set<int32_t>& without = job.resumed_without.emplace();
  for (const Rank rank : job.state.layout->lost) without.insert(rank.value);
  job.verdict_waits = job.incident->kind == Incident::Kind::kLoss &&
                      IsDeathAlone(job.incident->cause) && job.incident->Has(Phase::kResumed);
}

}  // namespace phalanx::coordinator

#include "coordinator/machine/live_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

// One command carries about so many bytes of rendezvous, well below the limit of a message.
constexpr size_t kRendezvousCommandBytes = 1 << 20;

plan::RankList KeepersOf(const LiveJob& job) {
  plan::RankList keepers;
  if (!job.state.from_copies || !job.recovery.has_value()) return keepers;
  for (const int32_t keeper : job.recovery->keepers) keepers.push_back(Rank{keeper});
  return keepers;
}

}  // namespace

bool WaitsAsBefore(const LiveJob& job) {
  return job.held_since.has_value() && job.state.waits_since.has_value() &&
         job.state.phase == job::JobPhase::kRunning && !job.state.ending.has_value();
}

bool OutputWaits(const LiveJob& job) {
  return job.run.has_value() && !job.run->output_waiting.empty() && !job.state.IsTerminal();
}

void NoteDecided(LiveJob& job, const std::optional<EpochStart>& decided) {
  if (decided.has_value() && (!job.decided.has_value() || job.decided->step() < decided->step()))
    job.decided = decided;
}

absl::Status NoSuchJob(JobId id) {
  return absl::NotFoundError(absl::StrCat("there is no ", ToString(id)));
}

FailureCause CauseOf(Instant now, const LiveJob& job, int32_t rank, job::FailureKind kind,
                     std::string message) {
  FailureCause failure{.kind = kind, .rank = rank, .message = std::move(message), .time = now};
  const Team* team = job.run.has_value() ? job.run->TeamOfRank(rank) : nullptr;
  if (team != nullptr) failure.node = team->node;
  return failure;
}

Assign AssignmentOf(const LiveJob& job) {
  return {.job = job.state.id,
          .epoch = job.state.epoch,
          .request = job.state.request,
          .layout = job.state.layout,
          .plan_digest = job.state.plan_digest,
          .checkpoint = job.state.checkpoint,
          .goes_on = job.state.goes_on(),
          .beside = job.recovery.has_value() && job.recovery->beside,
          .from_copies = job.state.from_copies,
          .keepers = KeepersOf(job),
          .standby = job.state.standby,
          .fence = job.state.fence};
}

std::vector<Rendezvous> RendezvousOf(const LiveJob& job, std::map<std::string, std::string> said) {
  std::vector<Rendezvous> commands;
  while (!said.empty()) {
    std::map<std::string, std::string> entries;
    size_t bytes = 0;
    do {
      bytes += said.begin()->first.size() + said.begin()->second.size();
      entries.insert(said.extract(said.begin()));
    } while (!said.empty() && bytes + said.begin()->second.size() <= kRendezvousCommandBytes);
    commands.push_back({job.state.id, job.state.epoch, std::move(entries), bytes});
  }
  return commands;
}

int64_t StepsSince(const LiveJob& job, int64_t step) {
  int64_t decided = 0;
  if (job.last_step.has_value()) decided = job.last_step->step;
  if (job.state.decided.has_value()) decided = std::max(decided, job.state.decided->step());
  return decided - step;
}

std::optional<CheckpointSource> LastCheckpoint(const LiveJob& job) {
  const auto& last = job.state.last_checkpoint;
  if (last.has_value()) return CheckpointSource{.path = last->path, .step = last->step};
  return job.state.checkpoint;
}

std::optional<int64_t> StepToGoBackTo(const LiveJob& job) {
  if (const auto last = LastCheckpoint(job); last.has_value()) return last->step;
  const bool nothing_decided =
      job.state.start.has_value() && job.state.start->step() == 0 && !job.last_step.has_value();
  if (nothing_decided || job.state.request->begins_anew) return 0;
  return std::nullopt;
}

bool HasRanks(const LiveJob& job, const Team& team) {
  return std::any_of(team.ranks.begin(), team.ranks.end(), [&job](int32_t rank) {
    const bool lost = job.recovery.has_value() && job.recovery->lost.contains(rank);
    return job.run->ranks[static_cast<size_t>(rank)].used && !lost;
  });
}

bool Contains(const plan::RankList& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool MayRecover(const LiveJob& job) {
  if (!job.run.has_value() || !job.state.request->recovers) return false;
  return job.state.phase == job::JobPhase::kRunning;
}

bool MayGoBack(const LiveJob& job) {
  if (!job.state.request->restarts || job.state.phase != job::JobPhase::kRunning) return false;
  if (!job.run.has_value() || job.state.ending.has_value()) return false;
  return StepToGoBackTo(job).has_value();
}

bool MayWaitForState(const LiveJob& job) {
  const JobRequest& request = *job.state.request;
  if (!request.recovers || !request.waits || job.state.phase != job::JobPhase::kRunning)
    return false;
  if (!job.run.has_value() || job.state.ending.has_value()) return false;
  return !job.state.copied.all().empty() && job.state.layout->lost.size() > request.lost.size();
}

bool MayEndWithCheckpoint(const LiveJob& job) {
  return job.state.phase == job::JobPhase::kRunning && job.state.request->checkpoints;
}

bool BudgetIsSpent(const LiveJob& job, Instant now) {
  const job::Budget& budget = job.state.request->budget;
  const auto recent = std::count_if(job.state.recoveries.begin(), job.state.recoveries.end(),
                                    [&](Instant at) { return at > now - budget.window; });
  return recent >= budget.total;
}

void AddReason(absl::string_view reason, std::string& message) {
  const size_t end = std::min(message.find('\n'), message.size());
  message.insert(end, absl::StrCat(end == 0 ? "" : "; ", reason));
}

bool IsUntold(const LiveJob& job, const FailureCause& cause) {
  return IsDeathAlone(cause) &&
         std::any_of(job.exits_awaited.begin(), job.exits_awaited.end(),
                     [&cause](const auto& process) { return process.second == cause.rank; });
}

std::string StandbyFor(const LiveJob& job, const PlanSummary& plan) {
  const Recovery& recovery = *job.recovery;
  if (recovery.beside || !recovery.back.empty() || job.standby.epoch != job.state.epoch ||
      recovery.from != job.state.epoch || plan.layout.nodes != job.state.layout->nodes) {
    return "";
  }
  const auto set = std::find_if(
      job.standby.sets.begin(), job.standby.sets.end(),
      [&plan](const StandbySet& s) { return s.complete() && s.plan_digest == plan.digest; });
  if (set == job.standby.sets.end() || set->ranks != WorkingRanks(plan.layout)) return "";
  const bool lost = std::any_of(recovery.lost.begin(), recovery.lost.end(),
                                [&set](int32_t rank) { return set->ranks.contains(rank); });
  return lost ? "" : set->name;
}

plan::RankList LostOfLayout(const LiveJob& job) {
  const plan::RankList& known = job.state.layout->lost;
  plan::RankList gone;
  for (const int32_t rank : job.recovery->lost) {
    if (!Contains(known, Rank{rank})) gone.push_back(Rank{rank});
  }
  return gone;
}

void EndSilence(LiveJob& job, const NodeName& node) {
  const Team* team = job.run.has_value() ? job.run->TeamOf(node) : nullptr;
  if (team == nullptr || !job.recovery.has_value()) return;
  std::erase_if(job.recovery->silent, [team](int32_t rank) { return team->Has(rank); });
}

void AwaitCopies(LiveJob& job) {
  Recovery& recovery = *job.recovery;
  recovery.stage = Recovery::Stage::kLeaving;
  recovery.copies.clear();
  recovery.awaited.clear();
  job.run->ready_known = 0;
  for (size_t rank = 0; rank < job.run->ranks.size(); ++rank) {
    job.run->ranks[rank].ready = false;
    if (job.run->ranks[rank].used) recovery.awaited.insert(static_cast<int32_t>(rank));
  }
  recovery.awaited.insert(recovery.keepers.begin(), recovery.keepers.end());
}

absl::Status MaySuspend(const LiveJob& job) {
  if (job.state.phase != job::JobPhase::kRunning) return absl::OkStatus();
  const std::string name = ToString(job.state.id);
  if (!job.state.request->checkpoints) {
    return absl::FailedPreconditionError(
        absl::StrCat(name,
                     " has no checkpoint section, so what it has trained would be lost; "
                     "phalanx cancel ",
                     name, " ends it"));
  }
  if (job.recovery.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, job.recovery->beside ? " goes over to another layout" : " recovers from a loss",
        "; suspend it when it trains again: phalanx why ", name));
  }
  const bool ends = job.state.ending.has_value() && !job.state.ending->wish.queues;
  if (ends || job.run->Succeeded()) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is ending: phalanx why ", name));
  }
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator

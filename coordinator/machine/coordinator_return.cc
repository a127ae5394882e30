// Ranks that were left out are back: the next epoch has them again.
//
// A device that was lost stays its job's. Once its node is there and training has gone on by a step
// without it, the node is told to make ready: to read the job's data, and to start and warm up a
// process on the device (worker/agent/machine/warming.cc). Then a layout with it is planned, and
// its ranks are connected, while the others train; once all are they leave for that layout behind a
// step that all of them do, go on as after a loss (recovery.h), and who is back is given state by
// them. Where all wait for the device nothing is made ready before. A device that is lent
// (coordinator_loans.cc) comes in the same way.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {
namespace {

std::string RankNumbers(const plan::RankList& ranks) {
  return absl::StrJoin(ranks, ", ",
                       [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value); });
}

// Of training that has gone on since the epoch began, and is not about to end.
bool MayReturn(const LiveJob& job) {
  const JobRequest& request = *job.state.request;
  if (!request.recovers || !request.rejoins) return false;
  if (job.state.layout->lost.size() <= request.lost.size()) return false;
  if (job.state.phase != job::JobPhase::kRunning || !job.run.has_value()) return false;
  if (job.recovery.has_value() || job.planning.has_value() || job.state.ending.has_value())
    return false;
  if (!job.last_step.has_value() || job.last_step->epoch != job.state.epoch) return false;
  return job.last_step->step + 1 < request.steps;
}

}  // namespace

void Coordinator::PlanWithout(Job& job, const NodeName& unfit) {
  Log(absl::StrCat("job=", job.state.id.value, " epoch=", job.state.epoch.value,
                   " plans again reason=\"node ", unfit, " may not serve any more\""));
  const bool returns = !std::exchange(job.returning, {}).empty();
  if (!job.recovery.has_value()) return;  // considered again with the next step
  if (returns) {
    job.recovery->tried.clear();
    return WaitForLost(
        job, absl::UnavailableError(absl::StrCat("node ", unfit, " may not serve any more")));
  }
  if (job.recovery->goes_back) return OrderGoBack(job);
  PlanWithoutLost(job);
}

void Coordinator::ConsiderReturn(Job& job) {
  if (job.run->failing.has_value()) return;
  const bool waits = job.recovery.has_value() && job.recovery->stage == Recovery::Stage::kWaiting &&
                     !job.planning.has_value();
  if (!waits && !MayReturn(job)) return;
  KeepLoans(job);
  plan::RankList back;
  std::map<NodeName, std::set<int32_t>> unprepared;
  for (const auto& [rank, name] : RanksThatMayReturn(nodes_, job)) {
    const Team* team = job.run->TeamOf(name);
    const auto prepared = job.prepared.find(name);
    const bool is_ready =
        (waits && team != nullptr && HasRanks(job, *team)) ||
        (prepared != job.prepared.end() && prepared->second.of == nodes_.at(name).incarnation &&
         prepared->second.done && (waits || prepared->second.ranks.contains(rank.value)));
    if (is_ready) {
      back.push_back(rank);
    } else {
      unprepared[name].insert(rank.value);
    }
  }
  for (const auto& [name, ranks] : unprepared) PrepareReturn(job, nodes_.at(name), ranks);
  if (back.empty()) return;
  if (waits) return GoOnWith(job, back);
  const bool mirrored = job.run->AllSafe();
  if (job.not_yet == Job::NotYet{job.state.epoch, back, mirrored}) return;
  job.returning = back;
  OrderPlan(job, {.placement = *job.state.placement,
                  .layout = job.state.layout,
                  .returned = std::move(back),
                  .kept = ComputePlan::Kept{job.state.layout, mirrored}});
}

void Coordinator::PrepareReturn(Job& job, const Node& node, const std::set<int32_t>& ranks) {
  if (Team* team = job.run->TeamOf(node.name)) team->starts_again = true;
  Job::Preparation& preparation = job.prepared[node.name];
  if (preparation.of == node.incarnation && !preparation.done) return;  // under way, or refused
  if (preparation.of != node.incarnation) preparation.ranks.clear();
  preparation.of = node.incarnation;
  preparation.done = preparation.refused = false;
  preparation.ranks.insert(ranks.begin(), ranks.end());
  Tell(job, NodeCommand{node.name, node.incarnation,
                        PrepareData{job.state.id, job.state.request, /*choose_checkpoint=*/false}});
}

void Coordinator::OnReturnPrepared(Job& job, const Node& node, const CommandFinished& result) {
  const auto preparation = job.prepared.find(node.name);
  if (preparation == job.prepared.end() || preparation->second.of != node.incarnation) return;
  if (result.code == static_cast<int32_t>(absl::StatusCode::kAborted)) {
    job.prepared.erase(preparation);  // called off: it may be wanted anew since
    return ConsiderReturn(job);
  }
  const bool sound = result.code == 0 && result.data_violations.empty() &&
                     result.data_digest == job.run->data_digest;
  if (sound) {
    preparation->second.done = true;
    return ConsiderReturn(job);
  }
  preparation->second.refused = true;
  const bool lends = std::any_of(job.loans.begin(), job.loans.end(), [&node](const auto& loan) {
    return loan.second.node == node.name;
  });
  if (lends) capacity_changed_ = true;  // another node may
  Commit(job, EventRecorded{"ReturnRefused",
                            absl::StrCat("node ", node.name, lends ? " is in reserve" : " is back",
                                         " and has not the job's data: ", result.message),
                            job.state.epoch});
}

// They stay warm, and what is lent stays so: with others that are back the holders may have work.
void Coordinator::RefuseReturn(Job& job, plan::RankList back, bool mirrored,
                               const absl::Status& why) {
  const bool again = job.not_yet.epoch == job.state.epoch && job.not_yet.ranks == back;
  const std::string ranks = RankNumbers(back);
  job.not_yet = {job.state.epoch, std::move(back), mirrored};
  if (again) return;
  Commit(job,
         EventRecorded{"ReturnRefused",
                       absl::StrCat("ranks ", ranks, " cannot be taken back yet: ", why.message(),
                                    "; they stay ready, to come back with more of what is "
                                    "lost"),
                       job.state.epoch});
}

void Coordinator::OnReturnPlanned(Job& job, bool mirrored,
                                  const absl::StatusOr<PlanSummary>& plan) {
  plan::RankList back = std::exchange(job.returning, {});
  if (plan.ok() && !MayReturn(job)) return;
  if (absl::IsDataLoss(plan.status()))
    return RefuseReturn(job, std::move(back), mirrored, plan.status());
  if (!plan.ok()) {
    RefuseLoans(job, back, plan.status());
    for (const Rank rank : back) {
      if (!job.loans.contains(rank.value))
        NoteLostAgain(job, rank.value, job.run->TeamOfRank(rank.value)->node);
    }
    Commit(job, EventRecorded{"ReturnRefused",
                              absl::StrCat("ranks ", RankNumbers(back),
                                           " cannot be taken back: ", plan.status().message()),
                              job.state.epoch});
    return;
  }
  AwaitQuiet(job, {.kind = job::FailureKind::kStartFailed, .message = "ranks came back"});
  job.recovery->beside = job.recovery->by_choice = true;
  for (const Rank rank : job.state.layout->lost) {  // another place may have what was lent to one
    if (!Contains(plan->layout.lost, rank)) job.recovery->back.insert(rank.value);
  }
  NoteReturn(job);
  OnRecoveryPlanned(job, plan);
}

void Coordinator::NoteLostAgain(Job& job, int32_t rank, const NodeName& name) {
  const auto node = nodes_.find(name);
  if (node == nodes_.end()) return;
  Job::LostAgain& again = job.lost_again[{rank, name}];
  if (again.of != node->second.incarnation) again = {.of = node->second.incarnation};
  ++again.times;
  if (!reserved_.empty()) capacity_changed_ = true;  // it may be kept out now, and another be lent
}

void Coordinator::NoteLost(Job& job, const FailureCause& cause, const std::set<int32_t>& lost) {
  NoteVerdict(job, cause);
  for (const int32_t rank : lost) {
    const Team* team = job.run->TeamOfRank(rank);
    const auto node = team == nullptr ? nodes_.end() : nodes_.find(team->node);
    if (node == nodes_.end()) continue;
    // The process that was made ready for it is gone.
    if (const auto prepared = job.prepared.find(team->node); prepared != job.prepared.end())
      prepared->second.ranks.erase(rank);
    if (cause.kind == job::FailureKind::kDeviceFailed && cause.rank == rank) {
      node->second.failed_devices.insert(team->DeviceOf(rank));
    }
    if (job.recovery.has_value() && job.recovery->back.contains(rank))
      NoteLostAgain(job, rank, team->node);
  }
}

}  // namespace phalanx::coordinator

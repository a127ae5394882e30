// Ranks that were left out are back: the next epoch has them again.
//
// A device that was lost stays its job's. Once its node is there, has the job's data, and training
// has gone on by a step without it, a layout with it is planned while the others train; they stop
// for that layout as they do after a loss (recovery.h), and who is back is given state by them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

bool Contains(const plan::RankList& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::string RanksText(const plan::RankList& ranks) {
  return absl::StrJoin(ranks, ", ",
                       [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value); });
}

}  // namespace

// Of training that has gone on since the epoch began, and is not about to end.
bool Coordinator::MayReturn(const Job& job) const {
  const JobRequest& request = *job.state.request;
  if (!request.recovers || job.state.layout->lost.size() <= request.lost.size()) return false;
  if (job.state.phase != job::JobPhase::kRunning || !job.run.has_value()) return false;
  if (job.recovery.has_value() || job.planning.has_value() || job.state.ending.has_value())
    return false;
  if (!job.last_step.has_value() || job.last_step->epoch != job.state.epoch) return false;
  return job.last_step->step + 1 < request.steps;
}

plan::RankList Coordinator::RanksThatMayReturn(const Job& job) const {
  plan::RankList ranks;
  for (const Rank rank : job.state.layout->lost) {
    const Team* team = job.run->TeamOfRank(rank.value);
    if (team == nullptr || Contains(job.state.request->lost, rank)) continue;
    const auto node = nodes_.find(team->node);
    if (node == nodes_.end() || !node->second.Schedulable()) continue;
    const int32_t device = team->devices[static_cast<size_t>(rank.value - team->first_rank)];
    if (node->second.failed_devices.contains(device)) continue;
    const auto kept_out = job.kept_out.find(rank.value);
    if (kept_out != job.kept_out.end() && kept_out->second == node->second.incarnation) continue;
    ranks.push_back(rank);
  }
  return ranks;
}

void Coordinator::ConsiderReturn(Job& job) {
  if (!MayReturn(job)) return;
  plan::RankList back = RanksThatMayReturn(job);
  std::set<NodeName> unprepared;
  std::erase_if(back, [&](Rank rank) {
    const Team& team = *job.run->TeamOfRank(rank.value);
    const auto prepared = job.prepared.find(team.node);
    const Incarnation incarnation = nodes_.at(team.node).incarnation;
    // Whoever runs ranks of the epoch has the data.
    const bool has_data =
        job.run->HasWork(team) || (prepared != job.prepared.end() &&
                                   prepared->second.of == incarnation && prepared->second.done);
    if (!has_data) unprepared.insert(team.node);
    return !has_data;
  });
  for (const NodeName& name : unprepared) PrepareReturn(job, nodes_.at(name));
  if (back.empty()) return;
  job.returning = back;
  OrderPlan(job, *job.state.placement, job.state.layout, /*lost=*/{}, std::move(back));
}

void Coordinator::PrepareReturn(Job& job, const Node& node) {
  Job::Preparation& preparation = job.prepared[node.name];
  if (preparation.of == node.incarnation) return;  // under way
  preparation = {.of = node.incarnation};
  Tell(job, NodeCommand{node.name, node.incarnation,
                        PrepareData{job.state.id, job.state.request, /*choose_checkpoint=*/false}});
}

void Coordinator::OnReturnPrepared(Job& job, const Node& node, const CommandFinished& result) {
  const auto preparation = job.prepared.find(node.name);
  if (preparation == job.prepared.end() || preparation->second.of != node.incarnation) return;
  const bool sound = result.code == 0 && result.data_violations.empty() &&
                     result.data_digest == job.run->data_digest;
  if (sound) {
    preparation->second.done = true;
    return ConsiderReturn(job);
  }
  Commit(job, EventRecorded{"ReturnRefused",
                            absl::StrCat("node ", node.name,
                                         " is back and has not the job's data: ", result.message),
                            job.state.epoch});
}

void Coordinator::OnReturnPlanned(Job& job, const absl::StatusOr<PlanSummary>& plan) {
  const plan::RankList back = std::exchange(job.returning, {});
  if (!plan.ok() || !MayReturn(job)) {
    if (plan.ok()) return;
    KeepOut(job, back);
    Commit(job, EventRecorded{"ReturnRefused",
                              absl::StrCat("ranks ", RanksText(back),
                                           " cannot be taken back: ", plan.status().message()),
                              job.state.epoch});
    return;
  }
  AwaitQuiet(job, {.kind = job::FailureKind::kStartFailed, .message = "ranks came back"});
  for (const Rank rank : back) job.recovery->back.insert(rank.value);
  OnRecoveryPlanned(job, plan);
}

// Until their node's process is another one: they would come and go for ever.
void Coordinator::KeepOut(Job& job, const plan::RankList& ranks) {
  for (const Rank rank : ranks) {
    const Team* team = job.run->TeamOfRank(rank.value);
    const auto node = team == nullptr ? nodes_.end() : nodes_.find(team->node);
    if (node != nodes_.end()) job.kept_out[rank.value] = node->second.incarnation;
  }
}

void Coordinator::NoteLostAgain(Job& job, const FailureCause& cause,
                                const std::set<int32_t>& lost) {
  for (const int32_t rank : lost) {
    const Team* team = job.run->TeamOfRank(rank);
    const auto node = team == nullptr ? nodes_.end() : nodes_.find(team->node);
    if (node == nodes_.end()) continue;
    if (cause.kind == job::FailureKind::kDeviceFailed && cause.rank == rank) {
      node->second.failed_devices.insert(
          team->devices[static_cast<size_t>(rank - team->first_rank)]);
    }
    if (job.recovery.has_value() && job.recovery->back.contains(rank)) KeepOut(job, {Rank{rank}});
  }
}

}  // namespace phalanx::coordinator

// Communicators that are made before anybody is lost (standby.h).
//
// Once an epoch trains, and nothing else is under way in its job, the layout that the loss of each
// of its ranks would lead to is planned, one rank after the other. Ranks that have work in it make
// its communicators beside training, use them once, and say so. What is not made in time, or fails,
// holds up no other set and is tried once more after a while. A loss that is planned to that very
// layout, by the plan's digest, and whose ranks have all said so, is assigned with them. Where it
// is planned otherwise (two ranks at once, a spare that is there by now, less memory) nothing of
// it is used.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {
namespace {

// "the loss of rank 1", "the loss of any one of ranks 0, 2".
std::string LossOf(const std::vector<int32_t>& ranks) {
  return absl::StrCat("the loss of ", ranks.size() == 1 ? "rank " : "any one of ranks ",
                      absl::StrJoin(ranks, ", "));
}

bool MayStandBy(const LiveJob& job) {
  const JobRequest& request = *job.state.request;
  if (!request.standby) return false;
  if (job.state.phase != job::JobPhase::kRunning || !job.run.has_value()) return false;
  if (job.recovery.has_value() || job.planning.has_value() || job.state.ending.has_value())
    return false;
  if (!job.last_step.has_value() || job.last_step->epoch != job.state.epoch) return false;
  return job.last_step->step + 1 < request.steps;
}

}  // namespace

void Coordinator::ConsiderStandby(Job& job) {
  if (standby_plan_.has_value() || !MayStandBy(job)) return;
  Standby& standby = job.standby;
  if (standby.epoch != job.state.epoch) standby = Standby{.epoch = job.state.epoch};
  if (!standby.sets.empty() && standby.sets.back().under_way()) return;
  const std::vector<RankState>& ranks = job.run->ranks;
  const auto end = static_cast<int32_t>(ranks.size());
  while (standby.next < end && !ranks[static_cast<size_t>(standby.next)].used) ++standby.next;
  const bool all_seen = standby.next == end;
  if (all_seen && standby.again.empty()) return TellStandby(job);
  const int32_t rank = all_seen ? standby.again.front() : standby.next;
  // Jobs that wait to be planned come first.
  if (plans_.AreMany()) return;
  standby_plan_ = StandbyPlan{
      .number = plans_.Add(), .job = job.state.id, .epoch = job.state.epoch, .rank = rank};
  // As the loss itself would order it.
  actions_.push_back(ComputePlan{.number = standby_plan_->number,
                                 .request = job.state.request,
                                 .placement = *job.state.placement,
                                 .limits = LimitsOf(nodes_, *job.state.placement, job.state.id),
                                 .epoch = Epoch{job.state.epoch.value + 1},
                                 .products = ProductsFor(nodes_, *job.state.placement),
                                 .layout = job.state.layout,
                                 .lost = {Rank{rank}},
                                 .returned = SparesThatAreBack(nodes_, job),
                                 .unfit = UnfitSpares(nodes_, job),
                                 .standby = true});
}

void Coordinator::TellStandby(Job& job) {
  Standby& standby = job.standby;
  if (std::exchange(standby.told, true)) return;
  std::vector<int32_t> covered, missing;
  std::string error;
  for (const StandbySet& set : standby.sets) {
    (set.complete() ? covered : missing).push_back(set.lost);
    if (error.empty()) error = set.error;
  }
  std::sort(covered.begin(), covered.end());  // those of a second try come last
  if (!covered.empty()) {
    Commit(job, EventRecorded{"StandbyReady",
                              absl::StrCat("communicators are there for ", LossOf(covered)),
                              job.state.epoch});
  }
  if (missing.empty()) return;
  const bool once_more = !std::exchange(standby.retried, true);
  const absl::Duration delay = options_.standby_retry_delay;
  Commit(job, EventRecorded{
                  "StandbyMissing",
                  absl::StrCat("communicators for ", LossOf(missing), " are not there: ", error,
                               "; they are ", once_more ? "tried once more in " : "not tried again",
                               once_more ? absl::FormatDuration(delay) : ""),
                  job.state.epoch});
  if (once_more) SetDeadline(job, job.run->standby_deadline, delay);
}

// Ranks have not said in time whether they have a set, or those that failed get their second try.
void Coordinator::OnStandbyDeadline(Job& job) {
  job.run->standby_deadline = absl::InfiniteFuture();
  Standby& standby = job.standby;
  if (standby.epoch != job.state.epoch || standby.sets.empty()) return;
  StandbySet& last = standby.sets.back();
  if (last.under_way()) {
    FailStandby(job, last,
                absl::StrCat(last.awaited.size() == 1 ? "rank " : "ranks ",
                             absl::StrJoin(last.awaited, ", "), " did not make them within ",
                             absl::FormatDuration(options_.standby_timeout)));
    return ConsiderStandby(job);
  }
  for (const StandbySet& set : standby.sets) {
    if (!set.error.empty()) standby.again.push_back(set.lost);
  }
  std::erase_if(standby.sets, [](const StandbySet& set) { return !set.error.empty(); });
  standby.told = false;
  ConsiderStandby(job);
}

void Coordinator::FailStandby(const Job& job, StandbySet& set, std::string error) {
  if (!set.error.empty()) return;
  set.error = std::move(error);
  Log(absl::StrCat(ToString(job.state.id), " has no ", set.name, " reason=\"", set.error, "\""));
}

void Coordinator::DropStandbyPlan(const Job& job) {
  if (!standby_plan_.has_value() || standby_plan_->job != job.state.id) return;
  actions_.push_back(DropPlan{standby_plan_->number});
  standby_plan_.reset();
}

void Coordinator::OnStandbyPlanned(const PlanComputed& event) {
  const StandbyPlan order = *std::exchange(standby_plan_, std::nullopt);
  Job* job = FindJob(order.job);
  if (job == nullptr || job->state.epoch != order.epoch || !MayStandBy(*job)) return;
  Standby& standby = job->standby;
  std::erase(standby.again, order.rank);
  standby.next = std::max(standby.next, order.rank + 1);
  if (!event.plan.ok()) return ConsiderStandby(*job);
  const Shared<plan::Layout> layout = event.plan->layout;
  const std::set<int32_t> ranks = WorkingRanks(*layout);
  const std::vector<RankState>& here = job->run->ranks;
  // Whoever has no process in this epoch, or another device in the next, has nothing ready for it.
  const bool all_here = layout->nodes == job->state.layout->nodes && !ranks.contains(order.rank) &&
                        std::all_of(ranks.begin(), ranks.end(), [&here](int32_t rank) {
                          return here[static_cast<size_t>(rank)].used;
                        });
  if (ranks.empty() || !all_here) return ConsiderStandby(*job);
  // A coordinator before this one may have had the same made: who has it says so at once.
  // What was said of a first try does not count in the second.
  const std::string name = absl::StrCat("standby/", job->state.epoch.value, "/", event.plan->digest,
                                        standby.retried ? "/again" : "");
  standby.sets.push_back({.name = name,
                          .lost = order.rank,
                          .plan_digest = event.plan->digest,
                          .ranks = ranks,
                          .awaited = ranks});
  SetDeadline(*job, job->run->standby_deadline, options_.standby_timeout);
  for (const Team& team : job->run->teams) {
    const auto node = nodes_.find(team.node);
    const bool wanted = std::any_of(team.ranks.begin(), team.ranks.end(),
                                    [&ranks](int32_t rank) { return ranks.contains(rank); });
    if (!wanted || node == nodes_.end()) continue;
    Tell(*job, NodeCommand{team.node, node->second.incarnation,
                           PrepareStandby{.job = job->state.id,
                                          .epoch = job->state.epoch,
                                          .set = name,
                                          .layout = layout,
                                          .plan_digest = event.plan->digest,
                                          // A coordinator before this one asked earlier.
                                          .attempt = absl::ToUnixMicros(now_)}});
  }
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankStandby& report) {
  if (job.standby.epoch != job.state.epoch) return;
  const auto set = std::find_if(job.standby.sets.begin(), job.standby.sets.end(),
                                [&](const StandbySet& s) { return s.name == report.set; });
  if (set == job.standby.sets.end() || !set->ranks.contains(rank)) return;
  const bool was_under_way = set->under_way();
  if (!report.error.empty()) {
    FailStandby(job, *set, absl::StrCat("rank ", rank, ": ", report.error));
  } else {
    set->awaited.erase(rank);
  }
  if (was_under_way && !set->under_way()) job.run->standby_deadline = absl::InfiniteFuture();
  ConsiderStandby(job);
}

}  // namespace phalanx::coordinator

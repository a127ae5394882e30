// Samples dealt by which devices are slow (recovery.slow_devices: fewer-samples).
//
// A device that has been slow for a while (slow_ranks.h) is a slow place of the job's next layout,
// in which its replica is dealt fewer samples; once it keeps up again it is none. Ranks go over to
// the layout as they do for ranks that come back (coordinator_return.cc): they are connected for it
// while they train, and leave their epoch at a step boundary. Nobody is lost or back, so it is no
// incident and counts in no budget; how often it may happen is bounded for itself. Where they
// cannot be connected they stop for the layout that they had, which counts in no budget either, and
// no change is tried for a while. Ranks of which nothing new is said stay what they are in the
// layout.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

// Of a step, so that a change may be worth what it costs.
constexpr int64_t kStepsLeftMin = 16;

int64_t PaceOf(double ratio) {
  const double pace = static_cast<double>(plan::kPaceOfOthers) / ratio;
  return std::clamp<int64_t>(std::llround(pace), 1, plan::kPaceOfOthers - 1);
}

double RatioOf(const plan::SlowPlace& slow) {
  return static_cast<double>(plan::kPaceOfOthers) / static_cast<double>(slow.pace);
}

bool Has(const plan::SlowPlaces& places, Rank place) {
  return std::any_of(places.begin(), places.end(),
                     [place](const plan::SlowPlace& slow) { return slow.place == place; });
}

plan::RankList PlacesOf(const plan::SlowPlaces& places) {
  plan::RankList ranks;
  for (const plan::SlowPlace& slow : places) ranks.push_back(slow.place);
  return ranks;
}

// "device 1 of node b (rank 3) is slow, 2.50 times"; those of `from` that `to` is without.
std::vector<std::string> Differences(const LiveJob& job, const plan::SlowPlaces& from,
                                     const plan::SlowPlaces& to, bool slow) {
  std::vector<std::string> words;
  for (const plan::SlowPlace& one : from) {
    const Team* team = job.run->TeamOfRank(one.place.value);
    if (Has(to, one.place) || team == nullptr) continue;
    std::string device = absl::StrCat("device ", team->DeviceOf(one.place.value), " of node ",
                                      team->node, " (rank ", one.place.value, ")");
    words.push_back(slow ? absl::StrFormat("%s takes %.2f times as long for its work as others",
                                           device, RatioOf(one))
                         : absl::StrCat(device, " keeps up again"));
  }
  return words;
}

bool MayPace(const LiveJob& job) {
  const JobRequest& request = *job.state.request;
  if (!request.relieves || !request.recovers) return false;
  if (job.state.phase != job::JobPhase::kRunning || !job.run.has_value()) return false;
  if (job.recovery.has_value() || job.planning.has_value() || job.incident.has_value() ||
      job.state.ending.has_value()) {
    return false;
  }
  if (job.slowness.epoch != job.state.epoch) return false;
  if (!job.last_step.has_value() || job.last_step->epoch != job.state.epoch) return false;
  return job.last_step->step + kStepsLeftMin < request.steps;
}

bool IsRefused(const LiveJob& job, const plan::SlowPlaces& places) {
  if (job.pacing.refused_in != job.state.epoch) return false;
  return job.pacing.refused.size() >= LiveJob::Pacing::kRefusedMax ||
         job.pacing.refused.contains(PlacesOf(places));
}

// Those that are to be slow in the job's layout: that have been for so long.
plan::SlowPlaces SlowPlacesOf(const LiveJob& job, Instant now, absl::Duration delay) {
  const auto for_long = [&](const std::map<int32_t, Instant>& since, int32_t rank) {
    const auto begin = since.find(rank);
    return begin != since.end() && now - begin->second >= delay;
  };
  plan::SlowPlaces places;
  for (const plan::SlowPlace& slow : job.state.layout->slow) {
    if (!for_long(job.slowness.over, slow.place.value)) places.push_back(slow);
  }
  for (const auto& [rank, verdict] : job.slowness.ranks.slow()) {
    if (Has(places, Rank{rank}) || !for_long(job.slowness.since, rank)) continue;
    // How slow it is cannot be told while it is about to be found not to be.
    if (verdict.ratio() < SlowRanks::kRatioOver) continue;
    places.push_back({Rank{rank}, PaceOf(verdict.ratio())});
  }
  std::sort(places.begin(), places.end(),
            [](const plan::SlowPlace& a, const plan::SlowPlace& b) { return a.place < b.place; });
  return places;
}

}  // namespace

void Coordinator::BeginSlowness(Job& job) {
  const std::map<int32_t, Instant> since = std::move(job.slowness.since);
  job.slowness = {.epoch = job.state.epoch};
  for (const plan::SlowPlace& slow : job.state.layout->slow) {
    job.slowness.ranks.Presume(slow.place.value, RatioOf(slow));
    const auto known = since.find(slow.place.value);
    job.slowness.since[slow.place.value] = known == since.end() ? now_ : known->second;
  }
}

void Coordinator::ConsiderPace(Job& job) {
  if (!MayPace(job) || job.run->failing.has_value()) return;
  if (now_ - job.pacing.failed < options_.pace_window) return;
  plan::SlowPlaces places = SlowPlacesOf(job, now_, options_.pace_delay);
  if (places == job.state.layout->slow || IsRefused(job, places)) return;
  std::erase_if(job.pacing.changes,
                [this](Instant at) { return at <= now_ - options_.pace_window; });
  if (static_cast<int64_t>(job.pacing.changes.size()) >= options_.pace_changes_max) return;
  OrderPlan(
      job,
      {.placement = *job.state.placement, .layout = job.state.layout, .slow = std::move(places)});
}

void Coordinator::OnPacePlanned(Job& job, const plan::SlowPlaces& wanted,
                                const absl::StatusOr<PlanSummary>& plan) {
  if (!MayPace(job)) return;
  const plan::SlowPlaces& before = job.state.layout->slow;
  std::vector<std::string> why = Differences(job, wanted, before, /*slow=*/true);
  for (std::string& over : Differences(job, before, wanted, /*slow=*/false))
    why.push_back(std::move(over));
  if (!plan.ok() || plan->dealt.empty()) {
    if (std::exchange(job.pacing.refused_in, job.state.epoch) != job.state.epoch)
      job.pacing.refused.clear();
    job.pacing.refused.insert(PlacesOf(wanted));
    Commit(job,
           EventRecorded{"SamplesStay",
                         absl::StrCat(absl::StrJoin(why, ", "), "; samples are dealt as before: ",
                                      plan.ok() ? "no replica would have other ones"
                                                : plan.status().message()),
                         job.state.epoch});
    return;
  }
  job.pacing.changes.push_back(now_);
  Commit(job, EventRecorded{
                  "SamplesMoved",
                  absl::StrCat(absl::StrJoin(why, ", "), "; from epoch ", job.state.epoch.value + 1,
                               " on ", absl::StrJoin(plan->dealt, ", ")),
                  job.state.epoch});
  AwaitQuiet(job, {.kind = job::FailureKind::kStartFailed,
                   .message = "samples are dealt by which devices are slow"});
  job.recovery->beside = job.recovery->paces = job.recovery->by_choice = true;
  OnRecoveryPlanned(job, plan);
}

// Its ranks are the same on the same devices, and no state had a home less.
void Coordinator::GoBackToPace(Job& job) {
  job.pacing.failed = now_;
  Commit(job, EventRecorded{"SamplesStay",
                            absl::StrCat("ranks were not connected for samples that are dealt "
                                         "otherwise; they are dealt as before, and are not dealt "
                                         "anew within ",
                                         absl::FormatDuration(options_.pace_window)),
                            job.state.epoch});
  OrderPlan(job, {.placement = *job.state.placement, .layout = job.state.state_layout});
}

}  // namespace phalanx::coordinator

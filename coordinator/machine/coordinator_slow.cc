// Devices that are slower than those of ranks with the same work (slow_ranks.h): they are named,
// and their jobs train on as they did, or with samples dealt otherwise (coordinator_pace.cc).
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

// Reasons of a job, and devices of a node in one of them.
constexpr size_t kSlowNamedMax = 8;

std::string Milliseconds(double seconds) { return absl::StrFormat("%.3g ms", 1000 * seconds); }

std::string Others(int32_t others) {
  return others == 1 ? "the other one" : absl::StrCat("the ", others, " others");
}

SlowDevice DeviceOf(const LiveJob& job, int32_t rank, const SlowRanks::Verdict& verdict) {
  SlowDevice slow{.job = job.state.id,
                  .rank = rank,
                  .seconds = verdict.seconds,
                  .others_seconds = verdict.others_seconds,
                  .others = verdict.others};
  if (const Team* team = job.run->TeamOfRank(rank); team != nullptr) {
    slow.node = team->node;
    slow.device = team->DeviceOf(rank);
  }
  if (const auto since = job.slowness.since.find(rank); since != job.slowness.since.end())
    slow.since = since->second;
  return slow;
}

std::string NamedDevice(const SlowDevice& slow) {
  return absl::StrCat("device ", slow.device, " of node ", slow.node, " (rank ", slow.rank, ")");
}

std::string Slowness(const SlowDevice& slow) {
  return absl::StrCat(NamedDevice(slow), " ", ToString(slow));
}

// Whether the job is in the middle of its epoch, so that its ranks can be compared.
bool Trains(const LiveJob& job) {
  return job.state.phase == job::JobPhase::kRunning && job.run.has_value() &&
         !job.recovery.has_value();
}

// What else is known of it, and what to do about it, behind ToString().
std::string AdviceOn(const NodeTable& nodes, const LiveJob& job, const SlowDevice& slow) {
  const bool relieved = plan::IsSlow(*job.state.layout, Rank{slow.rank});
  std::string text =
      relieved ? "; its replica is dealt fewer samples for that" : "; every step waits for it";
  std::vector<int32_t> beside;  // slow devices of its node
  for (const SlowDevice& other : SlowDevicesOf(job)) {
    if (other.node == slow.node && other.rank != slow.rank && beside.size() < kSlowNamedMax)
      beside.push_back(other.device);
  }
  if (!beside.empty()) {
    absl::StrAppend(&text, ", as for device", beside.size() == 1 ? " " : "s ",
                    absl::StrJoin(beside, ", "),
                    " of its node: look for what they share (power, cooling, processors)");
  }
  const auto node = nodes.find(slow.node);
  const bool gpu = job.state.request->device_kind == job::DeviceKind::kGpu;
  if (node != nodes.end()) {
    const std::vector<int32_t>& degrees = node->second.device_temperatures;
    const auto at = static_cast<size_t>(slow.device);
    if (at < degrees.size() && degrees[at] > 0)
      absl::StrAppend(&text, "; it is at ", degrees[at], " C");
  }
  absl::StrAppend(&text, "; look there at ",
                  gpu ? "its clocks and power (nvidia-smi -q -d CLOCK,POWER,PERFORMANCE) and at "
                        "what else uses it or the processors"
                      : "what else uses the processors",
                  "; phalanx drain ", slow.node, " lets the job go on elsewhere");
  return text;
}

}  // namespace

std::string ToString(const SlowDevice& slow) {
  return absl::StrFormat(
      "takes %.2f times as long for its work as %s with the same: %s a step, not %s", slow.ratio(),
      Others(slow.others), Milliseconds(slow.seconds), Milliseconds(slow.others_seconds));
}

std::vector<SlowDevice> SlowDevicesOf(const LiveJob& job) {
  std::vector<SlowDevice> slow;
  if (!Trains(job) || job.slowness.epoch != job.state.epoch) return slow;
  for (const auto& [rank, verdict] : job.slowness.ranks.slow()) {
    if (slow.size() == kSlowDevicesMax) break;
    slow.push_back(DeviceOf(job, rank, verdict));
  }
  return slow;
}

void Coordinator::NoteWork(const Node& node, const Progress& progress) {
  Job* job = progress.work.empty() ? nullptr : FindJob(progress.job);
  if (job == nullptr || !Trains(*job) || progress.epoch != job->state.epoch) return;
  if (job->slowness.epoch != job->state.epoch) BeginSlowness(*job);
  for (const RankWork& work : progress.work) {
    const Team* team = job->run->TeamOfRank(work.rank);
    if (team == nullptr || team->node != node.name || team->released) continue;
    if (!job->run->ranks[static_cast<size_t>(work.rank)].used) continue;
    for (const SlowRanks::Change& change :
         job->slowness.ranks.Add({work.rank, work.like != 0 ? work.like : work.equal, progress.step,
                                  work.seconds, work.seconds_per_gflop})) {
      TellSlow(*job, change);
    }
  }
  ConsiderPace(*job);
}

void Coordinator::TellSlow(Job& job, const SlowRanks::Change& change) {
  if (change.verdict.slow) {
    job.slowness.since[change.rank] = now_;
    job.slowness.over.erase(change.rank);
  } else {
    job.slowness.since.erase(change.rank);
    job.slowness.over[change.rank] = now_;
  }
  if (job.slow_events > options_.slow_events_max) return;
  if (++job.slow_events > options_.slow_events_max) {
    Commit(job, EventRecorded{"EventsDropped", "further devices that are slow are left out",
                              job.state.epoch});
    return;
  }
  const SlowDevice slow = DeviceOf(job, change.rank, change.verdict);
  if (change.verdict.slow) {
    Commit(job,
           EventRecorded{"SlowDevice", absl::StrCat(Slowness(slow), AdviceOn(nodes_, job, slow)),
                         job.state.epoch});
  } else {
    Commit(job, EventRecorded{"SlowDeviceOver",
                              absl::StrFormat("%s keeps up again: it takes %.2f times as long for "
                                              "its work as %s with the same",
                                              NamedDevice(slow), slow.ratio(), Others(slow.others)),
                              job.state.epoch});
  }
}

std::vector<std::string> Coordinator::ExplainSlow(const Job& job) const {
  const std::vector<SlowDevice> all = SlowDevicesOf(job);
  std::vector<std::string> reasons;
  for (size_t i = 0; i < std::min(all.size(), kSlowNamedMax); ++i)
    reasons.push_back(absl::StrCat(Slowness(all[i]), AdviceOn(nodes_, job, all[i])));
  for (const plan::SlowPlace& slow : job.state.layout->slow) {
    const Team* team = job.run.has_value() ? job.run->TeamOfRank(slow.place.value) : nullptr;
    const bool named = job.slowness.ranks.slow().contains(slow.place.value);
    if (team == nullptr || named || reasons.size() == kSlowNamedMax) continue;
    reasons.push_back(absl::StrFormat(
        "%s was slow, %.2f times, so that its replica is dealt fewer samples; since then it has %s",
        NamedDevice({.rank = slow.place.value,
                     .node = team->node,
                     .device = team->DeviceOf(slow.place.value)}),
        static_cast<double>(plan::kPaceOfOthers) / static_cast<double>(slow.pace),
        job.slowness.over.contains(slow.place.value) ? "kept up" : "not been judged"));
  }
  if (all.size() > kSlowNamedMax)
    reasons.push_back(absl::StrCat(all.size() - kSlowNamedMax, " more of its devices are slow"));
  return reasons;
}

}  // namespace phalanx::coordinator

// Jobs in which all wait and nobody gets any further: a kernel that never ends, ranks that wait for
// each other in a circle, a link that drops what is sent without a word.
//
// A rank that does not run, or works at one and the same, is found by its daemon (standstill.cc of
// the agent). Here each rank waits for others, and none is to blame by what is seen of it alone. So
// daemons say for how long all their ranks have stood each in one and the same wait for its device
// or for other ranks. Who waits for anything else, such as data, storage or a checkpoint, who
// works, evaluates or starts, is in no such wait, and as long as there is one of these nobody is
// judged. It is over when all say so of the same time, and that is long for steps of this job.
//
// Then the epoch ends as after a loss, with the same ranks. Who does not leave it, or whose device
// does not finish what it was given, is named and left out; else the next one begins where this one
// stood.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

// Of an epoch. Behind some of them mirrors get their state, and communicators are used first.
constexpr int64_t kFirstSteps = 8;

// Since when at the latest, and until when at least, all ranks stand in waits; nullopt: those of
// some node do not, or for less than `patience`. `interval`: of heartbeats, which tell of them.
std::optional<Run::Wait> WaitOfAll(Run& run, Instant now, absl::Duration interval,
                                   absl::Duration patience) {
  Run::Wait all{absl::InfinitePast(), now};
  // Who did not wait before, or not for long, does not yet, most likely.
  for (size_t i = 0; i < run.teams.size(); ++i) {
    const size_t at = (run.waits_not + i) % run.teams.size();
    const Team& team = run.teams[at];
    if (run.Succeeded(team)) continue;  // it has no ranks with work, or they are done
    const auto wait = run.waits.find(team.node);
    // Of one that is not heard it is judged how long that goes on.
    if (wait == run.waits.end() || now - wait->second.until > 2 * interval ||
        wait->second.until - std::max(wait->second.since, run.stepped_at) < patience) {
      run.waits_not = at;
      return std::nullopt;
    }
    all.since = std::max(all.since, wait->second.since);
    all.until = std::min(all.until, wait->second.until);
  }
  if (all.since == absl::InfinitePast()) return std::nullopt;
  return all;
}

}  // namespace

void Coordinator::NoteTrains(Job& job) {
  Run& run = *job.run;
  run.stepped_at = now_;
  run.steps = 0;  // those of the epoch before, which trained on beside it, are no steps of this one
  run.working = std::count_if(run.ranks.begin(), run.ranks.end(),
                              [](const RankState& rank) { return rank.used; });
  job.step_times.BeginEpoch();
}

void Coordinator::NoteStep(Job& job, const StepReport& report) {
  Run& run = *job.run;
  run.stepped_at = now_;
  ++run.steps;
  run.waits.clear();
  if (run.working > 0 && (job.stepping == 0 || run.steps >= kFirstSteps))
    job.stepping = run.working;
  job.step_times.Reached(now_, report.step, absl::Seconds(report.seconds));
}

void Coordinator::NoteWait(Job& job, const NodeName& node, absl::Duration waits) {
  Run& run = *job.run;
  if (waits < options_.no_progress_timeout) {
    if (!run.waits.empty()) run.waits.erase(node);
    return;
  }
  run.waits.insert_or_assign(node, Run::Wait{now_ - waits, now_});
  JudgeProgress(job);
}

void Coordinator::JudgeProgress(Job& job) {
  Run& run = *job.run;
  const bool trains = job.state.phase == job::JobPhase::kRunning && !job.recovery.has_value() &&
                      !job.state.ending.has_value();
  const bool judged = !run.accusations.empty() || run.accuser_killed.has_value();
  if (!trains || judged || !run.output_waiting.empty()) return;
  const std::optional<absl::Duration> slow = job.step_times.Slow();
  if (!slow.has_value()) return;
  // Few that are left do for a step what many did.
  const double times =
      10 * std::max(1.0, static_cast<double>(job.stepping) /
                             static_cast<double>(std::max<int64_t>(1, run.working)));
  const absl::Duration patience =
      std::max(times * *slow, run.steps >= kFirstSteps ? options_.no_progress_timeout
                                                       : options_.no_progress_timeout_first);
  if (now_ - run.stepped_at < patience) return;
  const std::optional<Run::Wait> all = WaitOfAll(run, now_, options_.heartbeat_interval, patience);
  if (!all.has_value() || all->until - std::max(all->since, run.stepped_at) < patience) return;
  const int64_t step = job.last_step.has_value() ? job.last_step->step : job.state.FirstStep();
  OnFailure(job, {.kind = job::FailureKind::kNoProgress,
                  .message = absl::StrCat(
                      "no step was decided behind step ", step, " for ",
                      absl::FormatDuration(absl::Floor(now_ - run.stepped_at, absl::Seconds(1))),
                      ": all ranks wait for each other or for their devices"),
                  .time = now_});
}

}  // namespace phalanx::coordinator

#include "tests/e2e/matrix/trial.h"

#include <algorithm>
#include <exception>
#include <map>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/plan/layout_change.h"
#include "tests/e2e/matrix/scene.h"

namespace phalanx::e2e {
namespace {

// On a machine that does much else: until all are back, and until there is a verdict in one run,
// where a process may not get the processor for seconds. The page judges medians without any.
constexpr absl::Duration kSlack = absl::Seconds(15);
constexpr absl::Duration kVerdictSlack = absl::Seconds(10);

absl::Time TimeOf(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

std::string RanksText(const google::protobuf::RepeatedField<int32_t>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

std::string ChangesText(const v1::Incident& incident) {
  std::vector<plan::LayoutChange> changes;
  for (const v1::Incident::LayoutChange& change : incident.changes())
    changes.push_back({change.module(), change.replica(), change.from(), change.to()});
  return absl::StrJoin(plan::ToWords(changes), ", ");
}

// "a spare takes over rank 3"; empty: none does.
std::string SparesText(const v1::Incident& incident, const std::vector<v1::JobEvent>& events) {
  for (const v1::JobEvent& event : events) {
    if (event.type() != "Recovered" || event.epoch() != incident.to_epoch()) continue;
    std::smatch told;
    if (std::regex_search(event.message(), told,
                          std::regex("(a spare takes|spares take) over ranks? [0-9]+(, [0-9]+)*")))
      return told.str();
  }
  return "";
}

// When the first fault came about.
absl::Time HitAt(const Scene& scene, const std::vector<v1::JobEvent>& events) {
  absl::Time hit = scene.hit().value_or(absl::InfiniteFuture());
  for (const v1::JobEvent& event : events)
    if (event.type() == "FaultReached") hit = std::min(hit, TimeOf(event.time()));
  return hit;
}

const v1::Incident* FirstLoss(const std::vector<v1::Incident>& incidents) {
  const auto loss = std::find_if(incidents.begin(), incidents.end(), [](const v1::Incident& i) {
    return i.kind() == v1::Incident::LOSS;
  });
  return loss == incidents.end() ? nullptr : &*loss;
}

std::optional<absl::Time> PhaseEnd(const v1::Incident& incident, absl::string_view name) {
  for (const v1::Incident::Phase& phase : incident.phases()) {
    if (phase.name() == name && phase.has_end())
      return TimeOf(incident.detected()) + absl::Microseconds(phase.end());
  }
  return std::nullopt;
}

// From the fault to the first verdict.
std::optional<absl::Duration> DetectedAfter(const Scene& scene, const v1::JobStatus& ended,
                                            const std::vector<v1::Incident>& incidents,
                                            const std::vector<v1::JobEvent>& events) {
  const absl::Time hit = HitAt(scene, events);
  std::optional<absl::Time> verdict;
  if (const v1::Incident* loss = FirstLoss(incidents); loss != nullptr) {
    verdict = PhaseEnd(*loss, "detected");
  } else if (ended.failure().has_time()) {
    verdict = TimeOf(ended.failure().time());
  }
  if (!verdict.has_value() || hit == absl::InfiniteFuture()) return std::nullopt;
  return std::max(absl::ZeroDuration(), *verdict - hit);
}

// What became of one incident, the rung of the ladder first.
std::string IncidentText(const v1::Incident& incident, const std::vector<v1::JobEvent>& events) {
  const std::string changes = ChangesText(incident);
  if (incident.kind() == v1::Incident::RETURN)
    return absl::StrCat(RanksText(incident.returned()), " came back: ", changes);
  std::vector<std::string> rungs, parts;
  const auto happened = [&](absl::string_view type) {
    return std::any_of(events.begin(), events.end(), [&](const v1::JobEvent& event) {
      return event.type() == type && event.epoch() >= incident.from_epoch() &&
             event.epoch() <= incident.to_epoch();
    });
  };
  for (const v1::Incident::LayoutChange& change : incident.changes()) {
    // A replica that takes part no more, or again, is in its number.
    if (change.replica() >= 0 && (change.from() == 0 || change.to() == 0)) continue;
    const std::string rung = change.replica() == -2 ? "restart"
                             : change.replica() < 0 ? "drop-replica"
                                                    : "shrink";
    if (std::find(rungs.begin(), rungs.end(), rung) == rungs.end()) rungs.push_back(rung);
  }
  const std::string spares = SparesText(incident, events);
  if (!spares.empty()) rungs.insert(rungs.begin(), "spare");
  if (happened("Waiting")) rungs.push_back("wait");
  const bool restarts = std::find(rungs.begin(), rungs.end(), "restart") != rungs.end();
  if (happened("StateLost") && !happened("WentBack") && !restarts) rungs.push_back("restart");
  if (!spares.empty()) parts.push_back(spares);
  if (!changes.empty()) parts.push_back(changes);
  if (happened("WentBack")) parts.push_back("back to the copies in host memory");
  const bool published = std::any_of(events.begin(), events.end(), [&](const v1::JobEvent& event) {
    return event.type() == "CheckpointPublished" && event.epoch() < incident.to_epoch();
  });
  if (happened("StateLost") && !happened("WentBack"))
    parts.push_back(published ? "back to the checkpoint" : "back to the beginning");
  if (!incident.returned().empty() && spares.empty())
    parts.push_back(absl::StrCat(RanksText(incident.returned()), " came back"));
  if (rungs.empty() && parts.empty()) parts.push_back("the same ranks begin again");
  return absl::StrCat(absl::StrJoin(rungs, ", "), rungs.empty() ? "" : ": ",
                      absl::StrJoin(parts, "; "));
}

std::string WhatHappened(const v1::JobStatus& ended, const std::vector<v1::Incident>& incidents,
                         const std::vector<v1::JobEvent>& events,
                         const std::vector<Metric>& metrics) {
  if (ended.phase() == v1::JOB_PHASE_FAILED) return "the job fails";
  std::vector<std::string> parts;
  for (const v1::Incident& incident : incidents) parts.push_back(IncidentText(incident, events));
  const auto skipped = std::count_if(metrics.begin(), metrics.end(),
                                     [](const Metric& metric) { return metric.skipped; });
  if (skipped > 0)
    parts.push_back(absl::StrCat(skipped, skipped == 1 ? " step" : " steps", " skipped"));
  // The last step has one, too.
  const bool missing =
      ended.has_last_checkpoint() && ended.last_checkpoint().step() < ended.steps();
  const bool failed = std::any_of(events.begin(), events.end(), [](const v1::JobEvent& event) {
    return event.type() == "CheckpointFailed" || event.type() == "CheckpointSkipped";
  });
  if (parts.empty() && (missing || failed)) return "trains on, a checkpoint is not written";
  return parts.empty() ? "trains on" : absl::StrJoin(parts, "; then ");
}

Outcome OutcomeOf(const v1::JobStatus& ended, const std::vector<v1::Incident>& incidents,
                  const std::vector<v1::JobEvent>& events, const std::vector<Metric>& metrics) {
  Outcome outcome{.what = WhatHappened(ended, incidents, events, metrics)};
  const v1::Incident* const loss = FirstLoss(incidents);
  const bool failed = ended.phase() == v1::JOB_PHASE_FAILED;
  if (!failed && loss == nullptr) return outcome;
  const v1::FailureCause& cause = failed ? ended.failure() : loss->cause();
  outcome.cause = cause.cause();
  outcome.first_ranks = {cause.rank()};
  if (!failed) outcome.redone = loss->steps_redone();
  return outcome;
}

std::optional<absl::Duration> BackAfter(const Scene& scene,
                                        const std::vector<v1::Incident>& incidents,
                                        const std::vector<v1::JobEvent>& events) {
  absl::Time hit = HitAt(scene, events);
  for (const v1::Incident& incident : incidents) {
    if (incident.kind() != v1::Incident::LOSS) continue;
    hit = std::min(hit, TimeOf(incident.detected()));
    if (const auto resumed = PhaseEnd(incident, "resumed"); resumed.has_value())
      return *resumed - hit;
  }
  return std::nullopt;
}

// A node that is cut off cannot say so.
bool WaitedInVain(const Row& row, const std::vector<v1::JobEvent>& events) {
  const auto waited =
      std::count_if(row.injections.begin(), row.injections.end(),
                    [](const Injection& i) { return i.waits() && i.fault != "partition"; });
  const auto reached = std::count_if(events.begin(), events.end(), [](const v1::JobEvent& event) {
    return event.type() == "FaultReached";
  });
  return reached < waited;
}

// Ranks that have another process than at the beginning though nobody lost them; of a job that was
// suspended all begin anew. "": there are none.
std::string RestartedFault(const std::map<int32_t, int>& starts,
                           const std::vector<v1::Incident>& incidents,
                           const std::vector<v1::JobEvent>& events) {
  if (std::any_of(events.begin(), events.end(),
                  [](const v1::JobEvent& event) { return event.type() == "Suspended"; }))
    return "";
  std::set<int32_t> lost;
  for (const v1::Incident& incident : incidents) {
    lost.insert(incident.lost().begin(), incident.lost().end());
    // Those that all the others waited for, too: they were lost in the same incident.
    lost.insert(incident.returned().begin(), incident.returned().end());
  }
  std::vector<int32_t> restarted;
  for (const auto& [rank, count] : starts)
    if (count > 1 && !lost.contains(rank)) restarted.push_back(rank);
  return restarted.empty() ? ""
                           : absl::StrCat("another process, without a loss, of ranks ",
                                          absl::StrJoin(restarted, ", "));
}

// What an epoch has left behind of steps behind which others went on without it. "": nothing.
std::string StaleFault(const std::vector<v1::Incident>& incidents,
                       const std::vector<Metric>& metrics, const std::string& checkpoints) {
  std::vector<checkpoint::CheckpointName> written;
  for (const Metric& metric : metrics) written.push_back({metric.step, metric.epoch});
  const auto stale = [&]() -> const checkpoint::CheckpointName* {
    for (const v1::Incident& incident : incidents) {
      if (incident.decided_step() == 0) continue;  // the job began again from something else
      for (const checkpoint::CheckpointName& name : written) {
        if (name.step > incident.decided_step() && name.epoch < incident.to_epoch()) return &name;
      }
    }
    return nullptr;
  };
  if (const auto* line = stale(); line != nullptr)
    return absl::StrCat("metrics of step ", line->step, " are of epoch ", line->epoch);
  if (checkpoints.empty()) return "";
  const auto listed = checkpoint::ListCheckpoints(checkpoints);
  if (!listed.ok()) return listed.status().ToString();
  written.clear();
  for (const checkpoint::ListedCheckpoint& one : *listed) written.push_back(one.name);
  const auto* name = stale();
  return name == nullptr ? "" : absl::StrCat("there is a checkpoint ", ToString(*name));
}

bool Tells(const std::vector<v1::JobEvent>& events, const std::string& what) {
  const std::regex told(what);
  return std::any_of(events.begin(), events.end(), [&told](const v1::JobEvent& event) {
    return std::regex_search(event.message(), told);
  });
}

// What is found and not expected, a line each.
std::string Differences(const Row& row, const Verdict& verdict) {
  const Outcome &expected = row.expected, &found = verdict.found;
  std::vector<std::string> lines;
  const auto compare = [&lines](const char* what, const std::string& a, const std::string& b) {
    if (a != b) lines.push_back(absl::StrCat(what, ": expected \"", a, "\", found \"", b, "\""));
  };
  compare("what happened", expected.what, found.what);
  compare("cause", expected.cause, found.cause);
  const bool one_of = std::includes(expected.first_ranks.begin(), expected.first_ranks.end(),
                                    found.first_ranks.begin(), found.first_ranks.end()) &&
                      expected.first_ranks.empty() == found.first_ranks.empty();
  if (!one_of) {
    compare("first rank", absl::StrJoin(expected.first_ranks, " or "),
            absl::StrJoin(found.first_ranks, ", "));
  }
  if (found.redone > expected.redone)
    lines.push_back(absl::StrCat("steps begun again: expected at most ", expected.redone,
                                 ", found ", found.redone));
  if (verdict.back.has_value() && *verdict.back > row.timeout + kSlack)
    lines.push_back(absl::StrCat("back after: expected at most ",
                                 absl::FormatDuration(row.timeout + kSlack), ", found ",
                                 absl::FormatDuration(*verdict.back)));
  const std::optional<absl::Duration> within = DetectedWithin(row);
  if (within.has_value() && verdict.detected.has_value() &&
      *verdict.detected > *within + kVerdictSlack)
    lines.push_back(absl::StrCat("detected after: expected at most ",
                                 absl::FormatDuration(*within + kVerdictSlack), ", found ",
                                 absl::FormatDuration(*verdict.detected)));
  return absl::StrJoin(lines, "\n");
}

// Cluster::AwaitEnd gives up after support::kPatience.
v1::JobStatus AwaitEnd(Cluster& cluster, int64_t job, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  while (true) {
    try {
      return cluster.AwaitEnd(job);
    } catch (const std::exception&) {
      if (absl::Now() >= deadline) throw;
    }
  }
}

// A run that was not hit has what a run that was has, but not for ever where it skips a step.
std::vector<Metric> UpToSkipped(const std::vector<Metric>& metrics) {
  const auto skipped = std::find_if(metrics.begin(), metrics.end(),
                                    [](const Metric& metric) { return metric.skipped; });
  return {metrics.begin(), skipped};
}

}  // namespace

const std::vector<Metric>& Trials::Whole(const JobOptions& job) {
  const std::pair<std::string, int64_t> key(job.language, job.steps);
  if (const auto known = whole_.find(key); known != whole_.end()) return known->second;
  Row row{.job = job};
  row.job.name = row.job.output = absl::StrCat("whole-", ++folders_);
  row.job.checkpoint.clear();
  Scene scene(data_, row);
  const v1::JobStatus ended = scene.cluster().AwaitEnd(scene.job());
  support::Require(ended.phase() == v1::JOB_PHASE_SUCCEEDED,
                   absl::StrCat("without a fault: ", ended.reason()));
  return whole_[key] = MetricsOf(data_, row.job.output);
}

std::string Trials::CurveFault(const Row& row, const std::vector<Metric>& hit) {
  if (std::string fault = StepsFault(hit, row.job.steps); !fault.empty()) return fault;
  const std::vector<Metric> alike = UpToSkipped(hit);
  std::vector<Metric> whole = Whole(row.job);
  whole.resize(std::min(whole.size(), alike.size()));
  return CurvesFault(alike, whole, static_cast<int64_t>(alike.size()));
}

void Trials::Run(const Row& row, Verdict& verdict) {
  Whole(row.job);
  Row one = row;
  one.job.name = one.job.output = absl::StrCat("hit-", ++folders_);
  if (!one.job.checkpoint.empty())
    one.job.checkpoint =
        absl::StrCat("{directory: ", one.job.output, "-checkpoints, ", one.job.checkpoint, "}");
  Scene scene(data_, one);
  try {
    for (const Injection& injection : row.injections) scene.Inject(injection);
    if (row.act != nullptr) row.act(scene);
    Cluster& cluster = scene.cluster();
    const v1::JobStatus ended = AwaitEnd(cluster, scene.job(), row.patience);
    const std::vector<v1::Incident> incidents = cluster.Incidents(scene.job());
    const std::vector<v1::JobEvent> events = cluster.Events(scene.job());
    const std::vector<Metric> metrics = MetricsOf(data_, one.job.output);
    verdict.found = OutcomeOf(ended, incidents, events, metrics);
    verdict.back = BackAfter(scene, incidents, events);
    verdict.detected = DetectedAfter(scene, ended, incidents, events);
    verdict.wrong = Differences(row, verdict);
    if (ended.phase() == v1::JOB_PHASE_SUCCEEDED) {
      if (const std::string fault = CurveFault(one, metrics); !fault.empty())
        absl::StrAppend(&verdict.wrong, verdict.wrong.empty() ? "" : "\n", "curve: ", fault);
      const std::string folder =
          one.job.checkpoint.empty()
              ? ""
              : absl::StrCat(data_.path, "/", one.job.output, "-checkpoints");
      if (const std::string fault = StaleFault(incidents, metrics, folder); !fault.empty())
        absl::StrAppend(&verdict.wrong, "\nof an epoch that was over: ", fault);
    }
    const std::string restarted = RestartedFault(cluster.Starts(scene.job()), incidents, events);
    if (!restarted.empty()) absl::StrAppend(&verdict.wrong, "\n", restarted);
    for (const std::string& then : row.then) {
      if (!Tells(events, then)) absl::StrAppend(&verdict.wrong, "\nno event tells that ", then);
    }
    if (WaitedInVain(row, events))
      absl::StrAppend(&verdict.wrong, "\nits fault did not come about");
    for (const v1::Incident& incident : incidents)
      absl::StrAppend(&verdict.logs, incident.summary(), "\n");
    if (!ended.reason().empty()) absl::StrAppend(&verdict.logs, ended.reason(), "\n");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    verdict.wrong = text.substr(0, text.find('\n'));
  }
  absl::StrAppend(&verdict.logs, scene.cluster().CoordinatorLog(), scene.cluster().WorkerLog());
}

Verdict Trials::Try(const Row& row) {
  Verdict verdict;
  try {
    Run(row, verdict);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    verdict.wrong = text.substr(0, text.find('\n'));
    verdict.logs = text;
  }
  return verdict;
}

std::string BackText(const Row& row, const Verdict& verdict) {
  if (!verdict.back.has_value()) return "";
  const absl::Duration rest = *verdict.back - row.timeout;
  std::string text = "< 15 s";
  for (const int seconds : {5, 1})
    if (rest < absl::Seconds(seconds)) text = absl::StrCat("< ", seconds, " s");
  return row.timeout_name.empty() ? text : absl::StrCat(row.timeout_name, ", then ", text);
}

}  // namespace phalanx::e2e

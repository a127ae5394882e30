#include "tests/sim/cluster/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster/epoch_run.h"

namespace phalanx::sim {
namespace {

// Longer than all the patience there is: ten minutes for ranks to be ready, or to hear from where
// an epoch goes on.
constexpr absl::Duration kStuck = absl::Minutes(25);
// And twice what a job of the asked length takes.
constexpr absl::Duration kSettleTime = absl::Hours(2);

coordinator::CoordinatorOptions OptionsOf(Timeline& timeline) {
  coordinator::CoordinatorOptions options;
  options.store = kStore;
  options.start_timeout = absl::Seconds(30 + static_cast<int64_t>(timeline.Below(570)));
  options.heartbeat_interval = absl::Seconds(1);
  options.heartbeat_timeout = absl::Seconds(5 + static_cast<int64_t>(timeline.Below(15)));
  return options;
}

}  // namespace

Cluster::Cluster(Planner& planner, const ClusterOptions& options)
    : options_(options),
      timeline_(options.seed),
      network_(timeline_, static_cast<size_t>(options.nodes > 0 ? options.nodes : 5)),
      ledger_(timeline_),
      planner_(planner),
      fabric_(timeline_, network_, ledger_),
      shared_{timeline_, network_, ledger_, planner_, fabric_},
      coordinator_(timeline_, network_, ledger_, planner_, OptionsOf(timeline_)),
      faults_(shared_, coordinator_, nodes_),
      operators_(Hash64(options.seed, StreamOf("operators"), 0)),
      losses_(Hash64(options.seed, StreamOf("losses"), 0)),
      people_(Hash64(options.seed, StreamOf("people"), 0)) {
  const size_t nodes = !options.devices.empty() ? options.devices.size()
                       : options.nodes > 0      ? static_cast<size_t>(options.nodes)
                                                : 1 + timeline_.Below(5);
  for (size_t i = 0; i < nodes; ++i) {
    const int32_t devices =
        options.devices.empty() ? 1 + static_cast<int32_t>(timeline_.Below(4)) : options.devices[i];
    nodes_.push_back(std::make_unique<NodeHost>(shared_, coordinator_, i, devices));
    nodes_.back()->start_failure = options.only_crashes ? 0 : 0.01;
  }
  shared_.copies = options.copies;
  shared_.bad_context = options.only_crashes ? 0 : 0.01;
  shared_.step_time = options.step_time > absl::ZeroDuration()
                          ? options.step_time
                          : timeline_.Between(absl::Milliseconds(20), absl::Seconds(2));
  jobs_max_ = 1 + static_cast<int64_t>(options.nodes > 0 ? nodes / 2 : timeline_.Below(3));
  if (options.only_crashes) {
    coordinator_.set_breaks_alone();
    jobs_max_ += 5;
    submit_interval_ = absl::Seconds(3);
  }
  coordinator_.deliver = [this](const StreamPtr& stream, const v1::OpenSessionResponse& message) {
    nodes_[stream->node]->Receive(stream, message);
  };
  coordinator_.deliver_close = [this](const StreamPtr& stream, absl::Status status) {
    NodeHost& node = *nodes_[stream->node];
    // The end of a process or of a stream is told over the network, too.
    network_.Once([this, index = stream->node] { return network_.DownReaches(index); },
                  [this, &node, stream, status = std::move(status)] {
                    timeline_.After(network_.Delay(), [&node, stream, status] {
                      node.OnStreamClosed(stream, status);
                    });
                  });
  };
  coordinator_.on_placement = [this](const coordinator::Placement& placement) {
    for (const auto& entry : placement) {
      for (const std::unique_ptr<NodeHost>& node : nodes_) {
        if (node->name() == entry.node) node->CheckFree(entry.devices);
      }
    }
  };
  coordinator_.Start();
  for (const std::unique_ptr<NodeHost>& node : nodes_) {
    timeline_.After(timeline_.Between(absl::ZeroDuration(), absl::Seconds(2)),
                    [&node] { node->Start(); });
  }
  if (options_.users) timeline_.After(absl::Seconds(1), [this] { MaybeSubmit(); });
  timeline_.After(absl::Seconds(10), [this] { CheckProgress(); });
  CheckTold();
  if (options_.users && options_.reserves)
    timeline_.After(absl::Seconds(2), [this] { KeepReserve(); });
  if (options_.users && options_.manages) timeline_.After(absl::Seconds(3), [this] { Manage(); });
  if (options_.loss_interval > absl::ZeroDuration()) LoseMessages();
}

void Cluster::LoseMessages() {
  timeline_.After(options_.loss_interval * (0.5 + losses_.Uniform()), [this] {
    if (settling_) return;
    fabric_.LoseNext();
    LoseMessages();
  });
}

void Cluster::MaybeSubmit() {
  if (settling_) return;
  timeline_.After(timeline_.Exponential(submit_interval_), [this] { MaybeSubmit(); });
  if (!coordinator_.up()) return;
  if (timeline_.Chance(0.03) && !coordinator_.views().empty()) {
    const auto chosen =
        std::next(coordinator_.views().begin(),
                  static_cast<std::ptrdiff_t>(timeline_.Below(coordinator_.views().size())));
    coordinator_.Cancel(chosen->first);
  }
  if (coordinator_.live_jobs() >= jobs_max_) return;
  int32_t devices = 0;
  for (const std::unique_ptr<NodeHost>& node : nodes_) devices += node->devices();
  const int64_t steps =
      options_.steps > 0 ? options_.steps : 10 + static_cast<int64_t>(timeline_.Below(150));
  const size_t document = options_.copies
                              ? planner_.drawn()[timeline_.Below(planner_.drawn().size())]
                              : timeline_.Below(Planner::kWithoutCopies);
  const coordinator::JobRequestPtr request =
      planner_.MakeRequest(document, absl::StrCat("job", jobs_ % 12), steps);
  if (request->devices > devices) return;
  ++jobs_;
  AskFor(WithDrawnRecovery(*request), absl::StrCat("request-", jobs_), 10);
}

void Cluster::Submit(const coordinator::JobRequestPtr& request) {
  ++jobs_;
  AskFor(request, absl::StrCat("request-", jobs_), 10);
}

bool Cluster::KillRank(JobId job, int32_t rank) {
  for (const std::unique_ptr<NodeHost>& node : nodes_) {
    for (RankProcess* process : node->processes()) {
      const EpochRun* run = process->current();
      if (process->job() != job || run == nullptr || run->rank() != rank) continue;
      process->Die(0, 9);
      return true;
    }
  }
  return false;
}

void Cluster::AskFor(const coordinator::JobRequestPtr& request, const std::string& request_id,
                     int times) {
  if (times == 0) return;
  const auto answered = std::make_shared<bool>(false);
  const auto answer = [answered](const absl::StatusOr<JobId>& job) {
    *answered = *answered || !absl::IsUnavailable(job.status());
  };
  coordinator_.Submit(request, request_id, answer);
  // A connection that breaks at the wrong moment has the same asked again at once.
  if (timeline_.Chance(0.1)) {
    timeline_.After(network_.Delay(), [this, request, request_id, answer] {
      coordinator_.Submit(request, request_id, answer);
    });
  }
  timeline_.After(timeline_.Between(absl::Seconds(1), absl::Seconds(10)),
                  [this, answered, request, request_id, times] {
                    if (!*answered) AskFor(request, request_id, times - 1);
                  });
}

// What a job file may say of its recovery and nobody but the coordinator reads.
coordinator::JobRequestPtr Cluster::WithDrawnRecovery(coordinator::JobRequest request) {
  request.hold = timeline_.Between(absl::Seconds(10), absl::Minutes(10));
  if (request.recovers && timeline_.Chance(0.2)) request.waits = true;
  if (timeline_.Chance(0.2)) request.standby = false;
  return std::make_shared<const coordinator::JobRequest>(std::move(request));
}

// Without faults every job goes forward, or waits for devices.
void Cluster::CheckProgress() {
  timeline_.After(absl::Seconds(30), [this] { CheckProgress(); });
  const Instant since = timeline_.now() - kStuck;
  if (!coordinator_.up() || !faults_.quiet() || faults_.quiet_since() > since) return;
  for (const auto& [id, view] : coordinator_.views()) {
    if (job::IsTerminal(view.phase) || view.phase == job::JobPhase::kQueued) continue;
    if (ledger_.progress_at(id) < since)
      ledger_.Violate(absl::StrCat(ToString(id), " is stuck: nothing has gone forward for ",
                                   absl::FormatDuration(kStuck)));
  }
}

void Cluster::CheckTold() {
  timeline_.After(absl::Seconds(1), [this] { CheckTold(); });
  for (const std::unique_ptr<NodeHost>& node : nodes_) node->CheckTold();
}

void Cluster::RunUntil(Instant end) {
  while (violations().empty() && timeline_.now() < end && timeline_.RunNext()) {
  }
}

void Cluster::RunQuietly(absl::Duration duration) {
  faults_.Stop();
  RunUntil(timeline_.now() + duration);
}

void Cluster::Run(absl::Duration duration) {
  const Instant end = timeline_.now() + duration;
  const absl::Duration interval = options_.fault_interval > absl::ZeroDuration()
                                      ? options_.fault_interval
                                      : timeline_.Between(absl::Seconds(5), absl::Seconds(90));
  faults_.Start(interval, {.only_crashes = options_.only_crashes,
                           .behind = options_.behind,
                           .managing = options_.users && options_.manages});
  RunUntil(end);
}

std::map<JobId, Cluster::Training> Cluster::training() const {
  std::map<JobId, Training> training;
  for (const auto& [id, view] : coordinator_.views()) {
    const int64_t decided = ledger_.last_decided(id);
    if (view.phase != job::JobPhase::kRunning || decided == 0) continue;
    training[id] = {.epoch = view.epoch,
                    .decided = decided,
                    .told = view.last_step.has_value() ? view.last_step->step : 0};
  }
  return training;
}

bool Cluster::Settled() const {
  if (!coordinator_.up() || coordinator_.live_jobs() > 0) return false;
  if (coordinator_.HoldsDevices()) return false;
  return std::all_of(nodes_.begin(), nodes_.end(), [](const std::unique_ptr<NodeHost>& node) {
    return node->up() && node->processes().empty();
  });
}

bool Cluster::Settle() {
  settling_ = true;
  faults_.Stop();
  // Devices that have failed stay so for as long as their daemon lives.
  for (const size_t node : std::exchange(shared_.bad_nodes, {})) {
    nodes_[node]->Kill();
    timeline_.After(absl::Seconds(5), [&host = *nodes_[node]] { host.Start(); });
  }
  const auto steps = static_cast<double>(options_.steps);
  const Instant end = timeline_.now() + kSettleTime + 2 * steps * shared_.step_time;
  while (violations().empty() && !Settled()) {
    if (timeline_.now() > end || !timeline_.RunNext()) {
      ledger_.Violate("not everything ends, though nothing breaks any more");
      return false;
    }
  }
  return violations().empty();
}

std::string Cluster::Describe(size_t lines) const {
  std::string text = absl::StrCat("seed ", options_.seed, ":\n", timeline_.Tail(lines));
  for (const auto& [id, view] : coordinator_.views()) {
    if (job::IsTerminal(view.phase)) continue;
    absl::StrAppend(&text, ToString(id), " ", job::ToString(view.phase), " epoch ",
                    view.epoch.value, " \"", view.reason, "\"\n");
  }
  for (const std::string& violation : violations()) absl::StrAppend(&text, violation, "\n");
  return text;
}

Cluster::Counts Cluster::counts() const {
  Counts counts{.events = static_cast<int64_t>(timeline_.events()),
                .jobs = jobs_,
                .faults = faults_.count(),
                .steps = ledger_.steps_decided(),
                .steps_given_up = ledger_.steps_given_up(),
                .epochs = ledger_.epochs_begun(),
                .recovered = ledger_.epochs_gone_on(),
                .from_copies = ledger_.epochs_from_copies(),
                .steps_of_copies = ledger_.steps_of_copies(),
                .standby = ledger_.standby_used(),
                .lent = coordinator_.lent(),
                .refused = ledger_.metrics_refused(),
                .older = shared_.older_assignments,
                .lost_messages = fabric_.lost(),
                .acknowledged = coordinator_.acknowledged(),
                .crashes = coordinator_.crashes()};
  for (const auto& [phase, count] : coordinator_.ended()) {
    if (phase == job::JobPhase::kSucceeded) counts.succeeded = count;
    if (phase == job::JobPhase::kFailed) counts.failed = count;
    if (phase == job::JobPhase::kCancelled) counts.cancelled = count;
  }
  return counts;
}

Cluster::Counts& Cluster::Counts::operator+=(const Counts& other) {
  events += other.events, jobs += other.jobs, succeeded += other.succeeded;
  failed += other.failed, cancelled += other.cancelled, faults += other.faults;
  steps += other.steps, steps_given_up += other.steps_given_up, epochs += other.epochs;
  from_copies += other.from_copies, steps_of_copies += other.steps_of_copies;
  recovered += other.recovered, standby += other.standby, lent += other.lent;
  refused += other.refused, older += other.older;
  lost_messages += other.lost_messages;
  crashes.all += other.crashes.all, crashes.writing += other.crashes.writing;
  acknowledged += other.acknowledged;
  return *this;
}

std::string Cluster::Counts::ToString() const {
  return absl::StrCat(
      events, " events, ", faults, " faults, ", jobs, " jobs (", succeeded, " succeeded, ", failed,
      " failed, ", cancelled, " cancelled), ", epochs, " epochs begun, ", recovered,
      " of them from others' state, ", from_copies, " of these from copies in host memory with ",
      steps_of_copies, " steps again, ", standby, " ranks with standby communicators, ", lent,
      " lent devices, ", refused, " refused metrics, ", older, " assignments of older epochs, ",
      lost_messages, " lost messages, ", steps, " steps, ", steps_given_up,
      " given up; the coordinator was killed ", crashes.all, " times, ", crashes.writing,
      " of them in a write, and had acknowledged ", acknowledged.ToString());
}

}  // namespace phalanx::sim

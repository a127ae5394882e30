// What nodes do of what they are told, and what their ranks say.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/coordinator/queue_world.h"

namespace phalanx::coordinator {
namespace {

// Where nodes are lost a checkpoint is written after each so many steps.
constexpr int64_t kWritten = 10;

}  // namespace

std::vector<int32_t> QueueWorld::Training::RanksOf(const NodeName& node) const {
  std::vector<int32_t> ranks;
  int32_t rank = 0;
  for (const NodeDevices& entry : placement) {
    for (size_t i = 0; i < entry.devices.size(); ++i, ++rank) {
      if (entry.node == node && !lost.contains(rank)) ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<NodeName> QueueWorld::Training::Working() const {
  std::vector<NodeName> nodes;
  for (const NodeDevices& entry : placement) {
    if (!RanksOf(entry.node).empty()) nodes.push_back(entry.node);
  }
  return nodes;
}

bool QueueWorld::IsMirrored(JobId id) const {
  return mirrored_.contains(machine_->jobs().at(id).state.request->name);
}

void QueueWorld::Obey(Host& host, uint64_t number, const Command& command) {
  host.last_command = std::max(host.last_command, number);
  CommandFinished answer{.session = host.session, .command_number = number};
  if (std::holds_alternative<PrepareData>(command)) answer.data_digest = "data";
  if (const auto* assign = std::get_if<Assign>(&command)) Assigned(host, *assign);
  if (const auto* begin = std::get_if<BeginEpoch>(&command)) Begin(host, *begin);
  if (const auto* stop = std::get_if<StopRanks>(&command)) Stop(host, *stop);
  const auto* wish = std::get_if<Wish>(&command);
  if (wish != nullptr && training_.contains(wish->job)) training_.at(wish->job).wished = true;
  if (const auto* publish = std::get_if<PublishCheckpoint>(&command)) {
    answers_.push_back(RankReported{
        host.session, publish->job, publish->epoch, publish->rank,
        RankCheckpointPublished{publish->step, absl::StrCat("/c/", publish->step), ""}});
  }
  answers_.push_back(std::move(answer));
}

void QueueWorld::Stop(Host& host, const StopRanks& stop) {
  const auto runs = host.running.find(stop.job);
  if (runs != host.running.end() && runs->second <= stop.epoch) {
    std::replace(host.devices.begin(), host.devices.end(), stop.job, JobId{});
    host.running.erase(runs);
  }
  const auto trains = training_.find(stop.job);
  if (trains != training_.end() && trains->second.epoch <= stop.epoch) training_.erase(trains);
}

// The epoch is the first that the host is told of, or it was told to another one before.
void QueueWorld::BeginAnew(const Assign& assign, int64_t behind) {
  Training& training = training_[assign.job];
  Training next{
      .epoch = assign.epoch, .placement = assign.layout->nodes, .goes_on = assign.goes_on};
  for (const plan::RankList* without_work : {&assign.layout->lost, &assign.layout->idle}) {
    for (const Rank rank : *without_work) next.lost.insert(rank.value);
  }
  if (assign.goes_on) {
    next.state = training.state;
    for (auto& said : training.said) {
      if (std::holds_alternative<RankQuiet>(said.second.report)) next.said.push_back(said);
    }
  } else if (lost_.erase(assign.job) != 0) {
    int64_t& done = done_[assign.job];
    if (behind != saved_[assign.job]) {
      Violate(absl::StrCat(ToString(assign.job), " lost ranks and goes back to step ", behind,
                           "; its last checkpoint is of step ", saved_[assign.job]));
    }
    counts_.again += done - behind;
    if (behind > 0) ++counts_.went_back;
    done = behind;
  }
  training = std::move(next);
}

void QueueWorld::Assigned(Host& host, const Assign& assign) {
  const int64_t behind = assign.checkpoint.has_value() ? assign.checkpoint->step : 0;
  if (training_[assign.job].epoch != assign.epoch) BeginAnew(assign, behind);
  Training& training = training_.at(assign.job);
  training.assigned.insert(host.name);
  if (!Suits(host.name, *machine_->jobs().at(assign.job).state.request))
    Violate(absl::StrCat(ToString(assign.job), " is on ", host.name, ", which does not suit it"));
  const auto before = host.running.find(assign.job);
  const bool goes_over = before != host.running.end() && before->second > over_[assign.job];
  if (goes_over && assign.goes_on && before->second < assign.epoch)
    SayQuiet(host, assign.job, before->second, training);
  host.running[assign.job] = assign.epoch;
  int32_t rank = 0;
  for (const NodeDevices& entry : training.placement) {
    for (const int32_t device : entry.devices) {
      const bool works = !training.lost.contains(rank++);
      if (entry.node != host.name) continue;
      JobId& holder = host.devices[static_cast<size_t>(device)];
      if (holder != JobId{} && !(holder == assign.job && (faults_.crashes || goes_over))) {
        Violate(absl::StrCat(host.name, " device ", device, " is given to ", ToString(assign.job),
                             " and has ", ToString(holder)));
      }
      holder = works ? assign.job : JobId{};
    }
  }
  if (assign.goes_on) return;
  if (behind != done_[assign.job]) {
    Violate(absl::StrCat(ToString(assign.job), " goes on behind step ", behind, " and had done ",
                         done_[assign.job]));
  }
  if (behind != 0) ++counts_.went_on;
}

EpochStart QueueWorld::KnownOf(JobId id) {
  const int64_t step = done_[id];
  if (step == 0) return {};
  return {.decision = StepDecision{.step = step}, .updates = step};
}

// Ranks of the epoch before say what they know of.
void QueueWorld::SayQuiet(Host& host, JobId id, Epoch epoch, Training& training) {
  RankQuiet quiet{.context_ok = true};
  if (training.state.contains(host.name)) quiet.known = KnownOf(id);
  for (const int32_t rank : training.RanksOf(host.name)) {
    const RankReported said{host.session, id, epoch, rank, quiet};
    training.said.emplace_back(host.name, said);
    answers_.push_back(said);
  }
}

void QueueWorld::Begin(Host& host, const BeginEpoch& begin) {
  const auto found = training_.find(begin.job);
  if (found == training_.end() || found->second.epoch != begin.epoch) return;
  Training& training = found->second;
  if (!training.assigned.contains(host.name)) return;
  training.begun.insert(host.name);
  training.ends = begin.ends;
  std::erase_if(training.said, [&host](const auto& said) {
    return said.first == host.name && std::holds_alternative<RankQuiet>(said.second.report);
  });
  const std::vector<NodeName> working = training.Working();
  const bool is_known = std::any_of(working.begin(), working.end(), [&](const NodeName& node) {
    return training.state.contains(node);
  });
  if (is_known && !training.ready && begin.start.step() != done_[begin.job]) {
    Violate(absl::StrCat(ToString(begin.job), " recovers behind step ", begin.start.step(),
                         " and had done ", done_[begin.job]));
  }
}

void QueueWorld::Report(JobId id, Training& training, int32_t rank,
                        decltype(RankReported::report) report) {
  int32_t first = 0;
  for (const NodeDevices& entry : training.placement) {
    const int32_t end = first + static_cast<int32_t>(entry.devices.size());
    if (rank < end) {
      const Host& host = HostNamed(entry.node);
      RankReported said{host.session, id, training.epoch, rank, std::move(report)};
      if (std::holds_alternative<StepReport>(said.report)) {
        said.decided = KnownOf(id);
        std::erase_if(training.said, [](const auto& before) {
          return std::holds_alternative<StepReport>(before.second.report);
        });
      }
      training.said.emplace_back(entry.node, said);
      if (!host.away_until.has_value()) answers_.push_back(said);
      return;
    }
    first = end;
  }
}

void QueueWorld::ReportAll(JobId id, Training& training, decltype(RankReported::report) report) {
  for (const NodeName& node : training.Working()) {
    for (const int32_t rank : training.RanksOf(node)) Report(id, training, rank, report);
  }
}

bool QueueWorld::Enter(JobId id, Training& training) {
  const std::vector<NodeName> working = training.Working();
  for (const NodeName& node : working) {
    const bool waits = training.goes_on && !training.begun.contains(node);
    if (waits || !training.assigned.contains(node)) return false;
  }
  const auto without = std::find_if(working.begin(), working.end(), [&](const NodeName& node) {
    return !training.state.contains(node);
  });
  const bool some_have = std::any_of(working.begin(), working.end(), [&](const NodeName& node) {
    return training.state.contains(node);
  });
  if (training.goes_on && without != working.end() && !(some_have && IsMirrored(id))) {
    const RankError error{.kind = job::FailureKind::kStateLost, .message = "nobody has its state"};
    const int32_t rank = training.RanksOf(*without).front();
    if (!std::exchange(training.gave_up, true)) Report(id, training, rank, error);
    return false;
  }
  if (training.goes_on) ++counts_.recovered;
  training.state = {working.begin(), working.end()};
  return true;
}

void QueueWorld::WriteParts(JobId id, Training& training, int64_t step) {
  for (const NodeName& node : training.Working()) {
    for (const int32_t rank : training.RanksOf(node))
      Report(id, training, rank, RankCheckpointPart{step, {.file = absl::StrCat("rank-", rank)}});
  }
}

void QueueWorld::EndEpoch(JobId id, Training& training, int64_t step, bool early) {
  training.ended = true;
  if (machine_->jobs().at(id).state.request->checkpoints) WriteParts(id, training, step);
  ReportAll(id, training, RankSucceeded{.step = step, .early = early});
}

// A second of a job: a step, or what comes before and behind all steps.
void QueueWorld::Train(JobId id, Training& training) {
  if (training.ended) return;
  if (!training.ready) {
    if (!Enter(id, training)) return;
    training.ready = true;
    return ReportAll(id, training, RankReady{});
  }
  const auto job = machine_->jobs().find(id);
  if (job == machine_->jobs().end() || job->second.state.phase != job::JobPhase::kRunning) return;
  const std::vector<NodeName> working = training.Working();
  const auto gone = std::find_if(working.begin(), working.end(), [&](const NodeName& node) {
    return !training.assigned.contains(node);
  });
  if (gone != working.end()) return Accuse(id, training, *gone);
  const int64_t steps = job->second.state.request->steps;
  if (training.ends || done_[id] >= steps)
    return EndEpoch(id, training, done_[id], /*early=*/done_[id] < steps);
  const int64_t step = ++done_[id];
  Report(id, training, training.RanksOf(working.front()).front(),
         StepReport{.step = step, .epoch = training.epoch});
  const bool last = step == steps;
  if (last || training.wished) return EndEpoch(id, training, step, /*early=*/!last);
  const bool writes = faults_.losses && job->second.state.request->checkpoints;
  if (writes && step % kWritten == 0) WriteParts(id, training, step);
}

}  // namespace phalanx::coordinator

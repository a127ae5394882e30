// The daemons of the world: real machines with streams and rank processes that are made up.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/coordinator/world.h"

namespace phalanx::coordinator {
namespace {

constexpr int64_t kSteps = 10, kEarlyStep = 6;  // of all jobs

agent::Document DocumentOf(const JobRequest& request) {
  return {request.document.text, request.document.directory};
}

struct Translate {
  agent::Command operator()(const PrepareData& c) const {
    return agent::PrepareDataCommand{c.job, DocumentOf(*c.request)};
  }
  agent::Command operator()(const Assign& c) const {
    agent::AssignCommand assign{.job = c.job,
                                .epoch = c.epoch,
                                .document = DocumentOf(*c.request),
                                .writes_checkpoints = c.request->checkpoints};
    for (const auto& entry : c.layout->nodes) {
      assign.placement.push_back({entry.node, entry.devices});
    }
    return assign;
  }
  agent::Command operator()(const Rendezvous& c) const {
    return agent::RendezvousCommand{c.job, c.epoch, ""};
  }
  agent::Command operator()(const StopRanks& c) const {
    return agent::StopCommand{c.job, c.epoch, c.grace, c.reason};
  }
  agent::Command operator()(const PublishCheckpoint& c) const {
    return agent::PublishCommand{c.job, c.epoch, c.rank, absl::StrCat(c.step)};
  }
  agent::Command operator()(const Wish& c) const { return agent::WishCommand{c.job, c.epoch, ""}; }
  agent::Command operator()(const BeginEpoch& c) const {
    return agent::BeginEpochCommand{c.job, c.epoch, "begin"};
  }
  agent::Command operator()(const WriteIncident& c) const {
    return agent::WriteIncidentCommand{c.job, c.epoch, c.rank, "incident"};
  }
  agent::Command operator()(const PrepareStandby& c) const {
    return agent::PrepareStandbyCommand{c.job, c.epoch, c.set};
  }
  agent::Command operator()(const InjectFault& c) const {
    return agent::InjectCommand{c.job, c.epoch, c.fault};
  }
  agent::Command operator()(const TryPeer& c) const {
    return agent::TryPeerCommand{c.word, c.listens_at};
  }
  agent::Command operator()(const FetchLogs& c) const {
    return agent::FetchLogsCommand{c.fetch_id, c.job, c.ranks, c.follow, c.ended, c.tail, c.after};
  }
};

}  // namespace

agent::Command ToDaemon(const Command& command) { return std::visit(Translate{}, command); }

void World::Start(FakeNode& node) {
  node.incarnation = ++incarnation_;
  node.daemon.emplace(
      agent::MachineOptions{.node = node.name, .devices = node.devices, .seed = incarnation_},
      now_);
  FeedDaemon(node, agent::DeadlineReached{});
}

// Ranks die with their daemon.
void World::Kill(FakeNode& node) {
  DropStream(node);
  node.daemon.reset();
  node.processes.clear();
  node.preparing.clear();
  node.answers.clear();
}

// The coordinator gets a beginning of what was written; it hears of the end later.
void World::DropStream(FakeNode& node) {
  if (!node.stream.has_value()) return;
  Stream stream = std::move(*node.stream);
  node.stream.reset();
  for (uint64_t left = prng_.Below(stream.up.size() + 1); left > 0; --left) {
    if (!stream.broken) Feed(stream.up.front());
    stream.up.pop_front();
  }
  ended_sessions_.push_back(stream.session);
}

void World::Break(FakeNode& node, bool told) {
  if (!node.stream.has_value()) return;
  if (!told) {
    if (!std::exchange(node.stream->broken, true)) ended_sessions_.push_back(node.stream->session);
    return;
  }
  const agent::SessionNumber number = node.stream->number;
  DropStream(node);
  FeedDaemon(node, agent::SessionClosed{number, absl::UnavailableError("the stream broke")});
}

void World::FeedDaemon(FakeNode& node, const agent::Event& event) {
  node.answers.push_back(event);
  while (!node.answers.empty() && node.daemon.has_value()) {
    const agent::Event next = std::move(node.answers.front());
    node.answers.pop_front();
    fingerprint_ = Mix64(fingerprint_ ^ next.index());
    for (const agent::Action& action : node.daemon->Step(now_, next)) {
      fingerprint_ = Mix64(fingerprint_ ^ (action.index() << 8));
      Carry(node, action);
      if (!node.daemon.has_value()) return;
    }
  }
}

void World::Carry(FakeNode& node, const agent::Action& action) {
  const auto process = [&](agent::ProcessNumber number) -> FakeProcess* {
    const auto found = node.processes.find(number);
    return found == node.processes.end() ? nullptr : &found->second;
  };
  if (const auto* open = std::get_if<agent::OpenSession>(&action)) {
    DropStream(node);
    node.stream = Stream{.session = SessionId{++session_}, .number = open->session};
    WorkerHello hello{.node = node.name,
                      .incarnation = Incarnation{node.incarnation},
                      .last_command_number = open->last_command_number,
                      .devices = node.devices,
                      .host_memory = kHostBytesOfDevice * node.devices,
                      .store = open->store,
                      .last_job = open->last_job};
    for (const agent::RunningAssignment& running : open->running) {
      hello.running.push_back({running.job, running.epoch});
    }
    node.stream->up.push_back(SessionOpened{node.stream->session, std::move(hello)});
  } else if (const auto* close = std::get_if<agent::CloseSession>(&action)) {
    if (!node.stream.has_value() || node.stream->number != close->session) return;
    while (!node.stream->outbox.empty()) {
      if (auto event = EventOf(node, node.stream->outbox.front())) {
        node.stream->up.push_back(*std::move(event));
      }
      node.stream->outbox.pop_front();
    }
    while (!node.stream->broken && !node.stream->up.empty()) {
      Feed(node.stream->up.front());
      node.stream->up.pop_front();
    }
    DropStream(node);
    node.answers.push_back(agent::SessionClosed{close->session, absl::OkStatus()});
  } else if (std::holds_alternative<agent::SendHeartbeat>(action) ||
             std::holds_alternative<agent::SendCommandResult>(action) ||
             std::holds_alternative<agent::SendReport>(action)) {
    if (node.stream.has_value()) node.stream->outbox.push_back(action);
  } else if (const auto* prepare = std::get_if<agent::PrepareData>(&action)) {
    node.preparing.push_back(*prepare);
  } else if (const auto* start = std::get_if<agent::StartProcess>(&action)) {
    Order(node, *start);
  } else if (const auto* run = std::get_if<agent::SendRunEpoch>(&action)) {
    Order(node, *run);
  } else if (const auto* warm = std::get_if<agent::SendWarmUp>(&action)) {
    node.answers.push_back(agent::RankWarmed{warm->process});
  } else if (const auto* publish = std::get_if<agent::SendPublish>(&action)) {
    int64_t step = 0;
    if (FakeProcess* p = process(publish->process);
        p != nullptr && absl::SimpleAtoi(publish->payload, &step))
      p->to_publish = step;
  } else if (const auto* wish = std::get_if<agent::SendWish>(&action)) {
    if (FakeProcess* p = process(wish->process)) p->wished = true;
  } else if (const auto* standby = std::get_if<agent::SendPrepareStandby>(&action)) {
    if (FakeProcess* p = process(standby->process)) p->to_make = standby->payload;
  } else if (const auto* stop = std::get_if<agent::SendStopEpoch>(&action)) {
    if (FakeProcess* p = process(stop->process)) p->to_stop = stop->epoch;
  } else if (const auto* quit = std::get_if<agent::SendQuit>(&action)) {
    if (FakeProcess* p = process(quit->process)) p->ending = true;
  } else if (const auto* terminate = std::get_if<agent::TerminateProcess>(&action)) {
    if (FakeProcess* p = process(terminate->process)) p->ending = true;
  } else if (const auto* kill = std::get_if<agent::KillProcess>(&action)) {
    if (FakeProcess* p = process(kill->process)) p->ending = p->killed = true;
  } else if (const auto* upload = std::get_if<agent::UploadLogs>(&action)) {
    node.answers.push_back(agent::UploadStarted{upload->command_number, absl::OkStatus()});
  } else if (std::holds_alternative<agent::Exit>(action)) {
    if (!node.processes.empty()) {
      // What is left dies with the daemon, as it does behind a grace time that was too short.
      node.processes.clear();
    }
    Kill(node);
  }
}

void World::Order(FakeNode& node, const agent::StartProcess& order) {
  for (const auto& [number, process] : node.processes) {
    if (process.device != order.device) continue;
    Violate(absl::StrCat(node.name, " device ", order.device, " is given to ", ToString(order.job),
                         " while a process of ", ToString(process.job), " is on it"));
  }
  if (Chance(60)) {
    node.answers.push_back(
        agent::ProcessStarted{order.process, absl::UnavailableError("no memory to fork")});
    return;
  }
  node.processes[order.process] = {.device = order.device, .job = order.job};
  node.answers.push_back(agent::ProcessStarted{order.process, absl::OkStatus()});
}

void World::Order(FakeNode& node, const agent::SendRunEpoch& order) {
  const auto found = node.processes.find(order.process);
  if (found == node.processes.end()) return;
  FakeProcess& process = found->second;
  if (order.assign->epoch < process.epoch) {
    Violate(absl::StrCat(node.name, " goes back to epoch ", order.assign->epoch.value, " of ",
                         ToString(order.assign->job)));
  }
  process.epoch = order.assign->epoch;
  process.rank = order.rank;
  process.ready = process.succeeded = process.wished = false;
  process.to_publish = std::nullopt;
  process.to_make = std::nullopt;
}

std::optional<Event> World::EventOf(FakeNode& node, const agent::Action& action) {
  const SessionId session = node.stream->session;
  if (const auto* beat = std::get_if<agent::SendHeartbeat>(&action)) {
    HeartbeatReceived event{.session = session, .draining = beat->draining};
    for (const agent::Progress& progress : beat->progress) {
      event.progress.push_back({progress.job, progress.epoch, progress.step});
    }
    return event;
  }
  if (const auto* result = std::get_if<agent::SendCommandResult>(&action)) {
    CommandFinished event{.session = session,
                          .command_number = result->command_number,
                          .code = static_cast<int32_t>(result->status.code()),
                          .message = std::string(result->status.message())};
    if (result->data != nullptr) {
      event.data_digest = result->data->digest;
      event.data_violations = result->data->violations;
    }
    return event;
  }
  if (const auto* report = std::get_if<agent::SendReport>(&action)) {
    RankReported event{session, report->job, report->epoch, report->rank, RankReady{}};
    if (const auto* payload = std::get_if<std::string>(&report->report)) {
      uint64_t place = 0;
      if (!absl::SimpleAtoi(*payload, &place)) return std::nullopt;
      event.report = reports_[place];
    } else if (const auto* fault = std::get_if<agent::RankFault>(&report->report)) {
      event.report = RankError{.kind = fault->kind, .message = fault->message};
    } else if (std::holds_alternative<agent::RankDeath>(report->report)) {
      event.report = RankDied{};
    } else {
      const auto& exit = std::get<agent::RankExit>(report->report);
      event.report =
          RankExited{.exit_code = exit.exit_code, .signal = exit.signal, .expected = exit.expected};
    }
    return event;
  }
  return std::nullopt;
}

// One message moves on. False: none waits.
bool World::PumpStream(FakeNode& node) {
  if (!node.stream.has_value() || !node.daemon.has_value()) return false;
  Stream& stream = *node.stream;
  const uint64_t ways = (stream.outbox.empty() ? 0u : 1u) + (stream.up.empty() ? 0u : 1u) +
                        (stream.down.empty() || stream.broken ? 0u : 1u);
  if (ways == 0) return false;
  uint64_t chosen = prng_.Below(ways);
  if (!stream.outbox.empty() && chosen-- == 0) {
    const agent::Action action = std::move(stream.outbox.front());
    stream.outbox.pop_front();
    if (auto event = EventOf(node, action)) stream.up.push_back(*std::move(event));
    FeedDaemon(node, agent::MessageWritten{stream.number});
    return true;
  }
  if (!stream.up.empty() && chosen-- == 0) {
    const Event event = std::move(stream.up.front());
    stream.up.pop_front();
    if (!stream.broken) Feed(event);
    return true;
  }
  const agent::Event event = std::move(stream.down.front());
  stream.down.pop_front();
  if (std::holds_alternative<agent::SessionClosed>(event)) {
    ended_sessions_.push_back(stream.session);
    node.stream.reset();
  }
  FeedDaemon(node, event);
  return true;
}

void World::Report(FakeNode& node, agent::ProcessNumber number, agent::ReportKind kind,
                   decltype(RankReported::report) report) {
  reports_.push_back(std::move(report));
  FeedDaemon(node, agent::RankReported{number, node.processes.at(number).epoch, kind,
                                       absl::StrCat(reports_.size() - 1)});
}

void World::EndProcess(FakeNode& node, agent::ProcessNumber number, int32_t signal) {
  node.processes.erase(number);
  if (signal != 0 && Chance(2)) FeedDaemon(node, agent::ProcessDied{number});
  FeedDaemon(node, agent::ProcessExited{number, 0, signal, ""});
}

// One thing happens to the data or the rank processes of a node. False: there is nothing to happen.
bool World::PumpProcess(FakeNode& node, bool faults) {
  if (!node.daemon.has_value()) return false;
  if (!node.preparing.empty() && (node.processes.empty() || Chance(2))) {
    const agent::PrepareData order = node.preparing.front();
    node.preparing.erase(node.preparing.begin());
    agent::DataOutcome outcome;
    outcome.digest = "data";
    if (faults && Chance(20)) {
      outcome.status = absl::InvalidArgumentError("bad data");
      outcome.violations = {{"spec.data.shards", "x", "must be readable"}};
    }
    FeedDaemon(node, agent::DataPrepared{order.request, std::move(outcome)});
    return true;
  }
  if (node.processes.empty()) return false;
  const auto chosen = std::next(node.processes.begin(),
                                static_cast<std::ptrdiff_t>(prng_.Below(node.processes.size())));
  const agent::ProcessNumber number = chosen->first;
  FakeProcess& process = chosen->second;
  if (process.ending) {
    EndProcess(node, number, process.killed ? 9 : 0);
    return true;
  }
  if (faults && Chance(25)) {
    EndProcess(node, number, 9);
    return true;
  }
  if (!process.said_hello) {
    process.said_hello = true;
    FeedDaemon(node, agent::RankHelloReceived{number});
    return true;
  }
  if (process.to_stop.has_value()) {
    const Epoch epoch = *std::exchange(process.to_stop, std::nullopt);
    FeedDaemon(node, agent::EpochStopped{number, epoch});
    return true;
  }
  if (process.to_publish.has_value()) {
    const int64_t step = *std::exchange(process.to_publish, std::nullopt);
    const bool fails = faults && Chance(4);
    Report(node, number, agent::ReportKind::kOther,
           RankCheckpointPublished{step, fails ? "" : absl::StrCat("/c/", step),
                                   fails ? "No space left on device" : ""});
    return true;
  }
  if (process.to_make.has_value()) {
    const std::string set = *std::exchange(process.to_make, std::nullopt);
    Report(node, number, agent::ReportKind::kOther,
           RankStandby{set, faults && Chance(4) ? "no memory" : ""});
    return true;
  }
  if (process.epoch == Epoch{} || process.succeeded) return false;
  if (!process.ready) {
    process.ready = true;
    Report(node, number, agent::ReportKind::kOther, RankReady{});
    return true;
  }
  if (faults && Chance(40)) {
    Report(node, number, agent::ReportKind::kOther,
           RankError{.kind = job::FailureKind::kPeerLost,
                     .accused = static_cast<int32_t>(prng_.Below(6)) - 1,
                     .message = "gone"});
    return true;
  }
  const auto job = machine_->jobs().find(process.job);
  const bool runs =
      job != machine_->jobs().end() && job->second.state.phase != job::JobPhase::kStarting;
  if (!runs) return false;
  if (process.rank == 0 && !Chance(3)) {
    const int64_t step = static_cast<int64_t>(prng_.Below(9)) + 1;
    Report(node, number, agent::ReportKind::kStep,
           StepReport{.step = step, .epoch = process.epoch});
    FeedDaemon(node, agent::RankProgressed{number, process.epoch, step});
    return true;
  }
  // Jobs that write checkpoints train for long, so that some are asked to end before.
  const bool ends = process.wished || last_steps_.contains({process.job, process.epoch});
  if (job->second.state.request->checkpoints && !ends && !Chance(30)) return false;
  EndEpoch(node, number, faults);
  return true;
}

// Whoever is the first to end was wished to or not; the others have decided the same steps.
void World::EndEpoch(FakeNode& node, agent::ProcessNumber number, bool faults) {
  FakeProcess& process = node.processes.at(number);
  const int64_t step =
      last_steps_.try_emplace({process.job, process.epoch}, process.wished ? kEarlyStep : kSteps)
          .first->second;
  process.succeeded = true;
  const bool early = step < kSteps;
  const auto job = machine_->jobs().find(process.job);
  const bool saves = job != machine_->jobs().end() && job->second.state.request->checkpoints;
  if (saves && !(faults && Chance(8))) {
    const std::string file = process.rank == 1 ? "" : absl::StrCat("rank-", process.rank);
    Report(node, number, agent::ReportKind::kOther, RankCheckpointPart{step, {.file = file}});
  }
  // A process that its daemon has ended for what it said reports no more.
  if (!node.processes.contains(number)) return;
  Report(node, number, agent::ReportKind::kOther, RankSucceeded{.step = step, .early = early});
}

}  // namespace phalanx::coordinator

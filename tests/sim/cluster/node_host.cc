#include "tests/sim/cluster/node_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/machine/xid.h"
#include "worker/agent/translate.h"

namespace phalanx::sim {
namespace {

// Of all streams and all daemons there ever were.
uint64_t IncarnationOf(size_t node, uint64_t life) { return (node + 1) * 1'000'000 + life; }

}  // namespace

NodeHost::NodeHost(Shared& shared, CoordinatorHost& coordinator, size_t index, int32_t devices)
    : shared_(shared),
      coordinator_(coordinator),
      index_(index),
      name_(absl::StrCat("node-", index)),
      devices_(devices) {}

void NodeHost::Start() {
  if (up()) return;
  ++life_;
  shared_.timeline.Note("daemon $0 starts for the $1th time", static_cast<int64_t>(index_),
                        static_cast<int64_t>(life_));
  machine_.emplace(
      agent::MachineOptions{
          .node = name_, .devices = devices_, .seed = IncarnationOf(index_, life_)},
      shared_.timeline.now());
  welcomed_ = {};
  lowest_.clear();
  stopped_.clear();
  assigned_.clear();
  meets_older_ = false;
  lost_devices_.clear();
  armed_ = absl::InfiniteFuture();
  Arm();
}

void NodeHost::Kill(bool silent) {
  if (!up()) return;
  shared_.timeline.Note("daemon $0 dies with $1 processes", static_cast<int64_t>(index_),
                        static_cast<int64_t>(processes_.size()));
  machine_.reset();
  ++life_;
  inbox_.clear();
  asked_.clear();
  for (const CopyMemory::Owner& owner : memory_.Free(JobId{}))
    shared_.ledger.OnCopyMemoryGone(owner.job, owner.epoch);
  paused_since_.reset();
  std::map<agent::ProcessNumber, Slot> processes = std::exchange(processes_, {});
  for (auto& [number, slot] : processes) slot.process->Die(0, 9, silent);
  // Their closures may still be on the stack.
  shared_.timeline.After(absl::Milliseconds(1),
                         [kept = std::make_shared<decltype(processes)>(std::move(processes))] {});
  if (stream_ == nullptr) return;
  const StreamPtr stream = std::exchange(stream_, nullptr);
  stream->daemon_closed = true;
  stream->down->Break();
  if (silent) {
    stream->up->Break();  // its coordinator hears nothing more, nor that it is so
  } else {
    stream->up->Send([this, stream] { coordinator_.OnStreamClosed(stream); });
  }
}

void NodeHost::Pause(absl::Duration duration) {
  if (!up()) return;
  if (!paused_since_.has_value()) paused_since_ = shared_.timeline.now();
  ++pauses_;
  shared_.timeline.Note("daemon $0 is stopped for $1 ms", static_cast<int64_t>(index_),
                        absl::ToInt64Milliseconds(duration));
  shared_.timeline.After(duration, [this] {
    if (--pauses_ > 0 || !paused_since_.has_value()) return;
    const absl::Duration stalled =
        shared_.timeline.now() - *std::exchange(paused_since_, std::nullopt);
    for (const std::function<void()>& ask : std::exchange(asked_, {})) ask();
    inbox_.push_front(agent::Stalled{stalled});
    agent::Event first = std::move(inbox_.front());
    inbox_.pop_front();
    Feed(std::move(first));
  });
}

std::vector<RankProcess*> NodeHost::processes() const {
  std::vector<RankProcess*> list;
  for (const auto& [number, slot] : processes_) {
    if (!slot.process->dead()) list.push_back(slot.process.get());
  }
  return list;
}

void NodeHost::Feed(agent::Event event) {
  if (!up()) return;
  if (paused_since_.has_value() || stepping_) return inbox_.push_back(std::move(event));
  const uint64_t life = life_;
  stepping_ = true;
  StepMachine(event);
  while (life == life_ && !inbox_.empty()) {
    const agent::Event next = std::move(inbox_.front());
    inbox_.pop_front();
    StepMachine(next);
  }
  stepping_ = false;
  if (life == life_) Arm();
}

void NodeHost::StepMachine(const agent::Event& event) {
  NoteEpoch(event);
  if (const auto* faulted = std::get_if<agent::DeviceFaulted>(&event);
      faulted != nullptr &&
      agent::TraitsOfXid(faulted->xid).effect == agent::XidEffect::kDeviceLost) {
    lost_devices_.insert(faulted->device);
  }
  const uint64_t life = life_;
  for (const agent::Action& action : machine_->Step(shared_.timeline.now(), event)) {
    Carry(action);
    if (life != life_) return;
  }
}

void NodeHost::Arm() {
  const Instant next = std::max(machine_->NextDeadline(), shared_.timeline.now());
  if (next >= armed_ || next == absl::InfiniteFuture()) return;
  armed_ = next;
  shared_.timeline.At(next, [this, next, life = life_] {
    if (life != life_ || armed_ != next) return;
    armed_ = absl::InfiniteFuture();
    if (paused_since_.has_value()) return;
    if (machine_->NextDeadline() > shared_.timeline.now()) return Arm();
    idle_deadlines_ = deadline_fed_ == shared_.timeline.now() ? idle_deadlines_ + 1 : 0;
    deadline_fed_ = shared_.timeline.now();
    if (idle_deadlines_ > 30)
      return shared_.ledger.Violate("deadlines of a daemon that change nothing");
    Feed(agent::DeadlineReached{shared_.timeline.now()});
  });
}

void NodeHost::Carry(const agent::Action& action) {
  using namespace agent;  // NOLINT: the many kinds of action
  if (const auto* open = std::get_if<OpenSession>(&action)) return Carry(*open);
  if (const auto* close = std::get_if<CloseSession>(&action)) return Carry(*close);
  if (const auto* start = std::get_if<StartProcess>(&action)) return Carry(*start);
  if (const auto* run = std::get_if<SendRunEpoch>(&action)) return Carry(*run);
  if (const auto* beat = std::get_if<SendHeartbeat>(&action)) return SendUp(MessageOf(*beat, {}));
  if (const auto* result = std::get_if<SendCommandResult>(&action)) {
    CheckResult(*result);
    return SendUp(MessageOf(*result));
  }
  if (const auto* report = std::get_if<SendReport>(&action)) return SendUp(MessageOf(*report));
  if (CarryToProcess(action)) return;
  if (const auto* free = std::get_if<FreeHostMemory>(&action)) return Carry(*free);
  if (const auto* warm = std::get_if<SendWarmUp>(&action)) {
    return FromProcess(warm->process, RankWarmed{warm->process},
                       shared_.timeline.Between(absl::Milliseconds(1), absl::Seconds(3)));
  }
  if (const auto* prepare = std::get_if<PrepareData>(&action)) {
    const absl::Duration time =
        shared_.timeline.Between(absl::Milliseconds(1), absl::Milliseconds(300));
    shared_.timeline.After(time, [this, life = life_, request = prepare->request] {
      if (life != life_) return;
      DataOutcome outcome;
      outcome.digest = "data";
      Feed(DataPrepared{request, std::move(outcome)});
    });
  } else if (const auto* log = std::get_if<LogLine>(&action)) {
    shared_.timeline.Note("daemon $0: $4", static_cast<int64_t>(index_), 0, 0, 0, log->text);
  } else if (std::holds_alternative<Exit>(action)) {
    Kill();
    // Whoever watches over it starts it again.
    shared_.timeline.After(absl::Seconds(2), [this] { Start(); });
  }
}

bool NodeHost::CarryToProcess(const agent::Action& action) {
  using namespace agent;  // NOLINT: the many kinds of action
  if (const auto* entries = std::get_if<SendRendezvous>(&action)) {
    v1::Rendezvous message;
    message.ParseFromString(entries->payload);
    ToProcess(entries->process, [message](RankProcess& process) { process.Deliver(message); });
  } else if (const auto* standby = std::get_if<SendPrepareStandby>(&action)) {
    v1::PrepareStandby message;
    message.ParseFromString(standby->payload);
    ToProcess(standby->process,
              [message](RankProcess& process) { process.PrepareStandby(message); });
  } else if (const auto* begin = std::get_if<SendBeginEpoch>(&action)) {
    v1::BeginEpoch message;
    message.ParseFromString(begin->payload);
    ToProcess(begin->process, [message](RankProcess& process) { process.Deliver(message); });
  } else if (const auto* stop = std::get_if<SendStopEpoch>(&action)) {
    ToProcess(stop->process, [epoch = stop->epoch](RankProcess& process) { process.Stop(epoch); });
  } else if (const auto* quit = std::get_if<SendQuit>(&action)) {
    NoteEnding(quit->process);
    ToProcess(quit->process, [](RankProcess& process) { process.Quit(); });
  } else if (const auto* terminate = std::get_if<TerminateProcess>(&action)) {
    // One that is stopped takes the signal when it runs again.
    ToProcess(terminate->process,
              [](RankProcess& process) { process.Do([&process] { process.Die(0, 15); }); });
  } else if (const auto* kill = std::get_if<KillProcess>(&action)) {
    NoteEnding(kill->process);
    ToProcess(kill->process, [](RankProcess& process) { process.Die(0, 9); });
  } else {
    return false;
  }
  return true;
}

void NodeHost::Carry(const agent::OpenSession& order) {
  auto stream = std::make_shared<Stream>();
  // In no stream that there was before.
  stream->session = coordinator::SessionId{++shared_.last_session};
  stream->number = order.session;
  stream->node = index_;
  stream->daemon_life = life_;
  const std::weak_ptr<Stream> weak = stream;
  stream->up = std::make_shared<Pipe>(
      shared_.timeline, shared_.network, [this] { return shared_.network.UpReaches(index_); },
      [this, weak] {
        if (const StreamPtr self = weak.lock())
          OnStreamClosed(self, absl::UnavailableError("keepalive watchdog timeout"));
      });
  stream->down = std::make_shared<Pipe>(
      shared_.timeline, shared_.network, [this] { return shared_.network.DownReaches(index_); },
      [this, weak] {
        if (const StreamPtr self = weak.lock()) coordinator_.OnStreamClosed(self);
      });
  stream_ = stream;
  if (std::exchange(meets_older_, false)) return GreetFromOlder(stream);
  if (shared_.timeline.Chance(shared_.slow_stream)) {
    stream->up->Hold(shared_.timeline.now() +
                     shared_.timeline.Between(absl::ZeroDuration(), absl::Seconds(30)));
  }
  coordinator::WorkerHello hello{.node = name_,
                                 .incarnation = Incarnation{IncarnationOf(index_, life_)},
                                 .last_command_number = order.last_command_number,
                                 .devices = devices_,
                                 .store = order.store,
                                 .last_job = order.last_job};
  for (const agent::RunningAssignment& running : order.running)
    hello.running.push_back({running.job, running.epoch});
  stream->up->Send([this, stream, hello] {
    if (coordinator_.Accept(stream, hello)) return;
    // Nobody listens.
    shared_.timeline.After(shared_.network.Delay(), [this, stream] {
      OnStreamClosed(stream, absl::UnavailableError("connection refused"));
    });
  });
}

void NodeHost::Carry(const agent::CloseSession& order) {
  if (order.session == welcomed_) welcomed_ = {};
  if (stream_ == nullptr || stream_->number != order.session) return;
  const StreamPtr stream = std::exchange(stream_, nullptr);
  stream->daemon_closed = true;
  // What has come in by then is fed all the same.
  stream->daemon_reads = shared_.timeline.Chance(0.3);
  if (!stream->daemon_reads) stream->down->Break();
  stream->up->Send([this, stream] { coordinator_.OnStreamClosed(stream); });
  Feed(agent::SessionClosed{order.session, absl::OkStatus()});
}

void NodeHost::SendUp(const v1::OpenSessionRequest& message) {
  if (stream_ == nullptr) return;
  const StreamPtr stream = stream_;
  stream->up->Send([this, stream, message] {
    if (coordinator_.Receive(stream, message)) return;
    // The far end is gone and says so, whoever asks.
    shared_.network.Once(
        [this] { return shared_.network.DownReaches(index_); },
        [this, stream] { OnStreamClosed(stream, absl::UnavailableError("connection reset")); });
  });
  // What has left this process may still be on its way for long; and it may have arrived long
  // before this process hears that it was written, if it ever does.
  const absl::Duration heard =
      shared_.timeline.Chance(0.02)
          ? shared_.timeline.Between(absl::Milliseconds(1), absl::Seconds(2))
          : shared_.network.LocalDelay();
  shared_.timeline.After(heard, [this, stream, life = life_] {
    if (life == life_ && !stream->daemon_closed) Feed(agent::MessageWritten{stream->number});
  });
}

void NodeHost::Receive(const StreamPtr& stream, const v1::OpenSessionResponse& message) {
  stream->down->Send([this, stream, message] {
    const bool read = stream->daemon_reads && stream->daemon_life == life_;
    if (!read && (stream->daemon_closed || stream->daemon_life != life_)) {
      return shared_.network.Once([this] { return shared_.network.UpReaches(index_); },
                                  [this, stream] { coordinator_.OnStreamClosed(stream); });
    }
    RememberAssignment(message);
    std::optional<agent::Event> event = agent::EventOf(stream->number, message);
    if (event.has_value()) Feed(*std::move(event));
  });
}

void NodeHost::OnStreamClosed(const StreamPtr& stream, const absl::Status& status) {
  if (stream->daemon_closed || stream->daemon_life != life_) return;
  stream->daemon_closed = true;
  if (stream_ == stream) stream_ = nullptr;
  Feed(agent::SessionClosed{stream->number, status});
}

void NodeHost::BreakStream(bool tell_daemon, bool tell_coordinator) {
  if (stream_ == nullptr) return;
  const StreamPtr stream = stream_;
  stream->up->Break();
  stream->down->Break();
  Timeline& timeline = shared_.timeline;
  timeline.Note("the stream of node $0 breaks: daemon told $1, coordinator told $2",
                static_cast<int64_t>(index_), tell_daemon, tell_coordinator);
  // Who is not told finds out by its keepalive.
  const auto delay = [&](bool told) {
    return told ? timeline.Between(absl::ZeroDuration(), absl::Milliseconds(200))
                : timeline.Between(absl::Seconds(10), absl::Seconds(40));
  };
  timeline.After(delay(tell_daemon), [this, stream] {
    OnStreamClosed(stream, absl::UnavailableError("the stream broke"));
  });
  timeline.After(delay(tell_coordinator), [this, stream] { coordinator_.OnStreamClosed(stream); });
}

void NodeHost::DelayStream(bool by_daemon, absl::Duration late) {
  if (stream_ == nullptr) return;
  const StreamPtr stream = stream_;
  Timeline& timeline = shared_.timeline;
  timeline.Note("the stream of node $0 is given up, by its daemon $1; the rest arrives $2 ms late",
                static_cast<int64_t>(index_), by_daemon, absl::ToInt64Milliseconds(late));
  const absl::Status why = absl::UnavailableError("the stream broke");
  const absl::Duration soon = timeline.Between(absl::ZeroDuration(), absl::Milliseconds(200));
  (by_daemon ? stream->down : stream->up)->Break();
  (by_daemon ? stream->up : stream->down)->Hold(timeline.now() + late);
  if (by_daemon) {
    timeline.After(soon, [this, stream, why] {
      stream->up->Send([this, stream] { coordinator_.OnStreamClosed(stream); });
      OnStreamClosed(stream, why);
    });
  } else {
    timeline.After(soon, [this, stream, why] {
      stream->down->Send([this, stream, why] { OnStreamClosed(stream, why); });
      coordinator_.OnStreamClosed(stream);
    });
  }
  // Should that not arrive either, the keepalive of the other end says so.
  timeline.After(late + absl::Seconds(40), [this, stream, why] {
    OnStreamClosed(stream, why);
    coordinator_.OnStreamClosed(stream);
  });
}

void NodeHost::FaultDevice(int32_t device, int32_t xid) {
  if (!up()) return;
  const agent::XidEffect effect = agent::TraitsOfXid(xid).effect;
  // For as long as its daemon lives.
  if (effect == agent::XidEffect::kDeviceLost) shared_.bad_nodes.insert(index_);
  for (RankProcess* process : processes()) {
    if (process->device() != device) continue;
    // What it was given is not done any more, or its process ends of the error.
    if (effect == agent::XidEffect::kDeviceLost) process->Hang();
    if (effect == agent::XidEffect::kProcessFault) process->EndWithin(absl::Seconds(2));
  }
  Feed(agent::DeviceFaulted{device, xid});
}

void NodeHost::Carry(const agent::StartProcess& order) {
  for (const auto& [number, slot] : processes_) {
    if (slot.process->device() == order.device && order.device != agent::kNoDevice) {
      shared_.ledger.Violate(absl::StrCat(name_, " device ", order.device, " is given to ",
                                          ToString(order.job), " while a process of ",
                                          ToString(slot.process->job()), " is on it"));
    }
  }
  if (lost_devices_.contains(order.device)) {
    shared_.ledger.Violate(absl::StrCat(name_, " device ", order.device,
                                        " is lost and is given to ", ToString(order.job)));
  }
  const absl::Duration time =
      shared_.timeline.Between(absl::Milliseconds(1), absl::Milliseconds(20));
  const agent::ProcessNumber number = order.process;
  if (shared_.timeline.Chance(start_failure)) {
    shared_.timeline.After(time, [this, number, life = life_] {
      if (life == life_)
        Feed(agent::ProcessStarted{number, absl::UnavailableError("no memory to fork")});
    });
    return;
  }
  const RankProcess::Daemon daemon{
      .tell =
          [this, number](agent::Event event) {
            FromProcess(number, std::move(event), shared_.network.LocalDelay());
          },
      .ended = [this, number](int32_t exit_code,
                              int32_t signal) { OnProcessEnded(number, exit_code, signal); },
      .ask =
          [this, number](std::function<void(CopyMemory&)> question,
                         std::function<void()> answered) {
            Ask(number, std::move(question), std::move(answered));
          }};
  Slot& slot = processes_[number];
  slot.to_daemon = slot.to_process = shared_.timeline.now();
  FromProcess(number, agent::ProcessStarted{number, absl::OkStatus()}, time);
  slot.process =
      std::make_unique<RankProcess>(shared_, index_, order.device, order.job, number, daemon);
}

void NodeHost::Carry(const agent::SendRunEpoch& order) {
  const auto found = processes_.find(order.process);
  if (found == processes_.end()) return;
  const Epoch epoch = order.assign->epoch;
  if (epoch < found->second.epoch || epoch < lowest_[order.assign->job]) {
    shared_.ledger.Violate(absl::StrCat(name_, " goes back to epoch ", epoch.value, " of ",
                                        ToString(order.assign->job)));
  }
  found->second.epoch = epoch;
  v1::Assign assign;
  if (!assign.ParseFromString(order.assign->payload))
    return shared_.ledger.Violate("an assignment cannot be read");
  ToProcess(order.process,
            [assign, rank = order.rank, beside = order.beside, keeps = order.keeps](
                RankProcess& process) { process.RunEpoch(assign, rank, beside, keeps); });
}

// Most deaths are known long before waitpid tells of them.
void NodeHost::OnProcessEnded(agent::ProcessNumber number, int32_t exit_code, int32_t signal) {
  shared_.timeline.Note("process $1 of node $0 ends: code $2 signal $3",
                        static_cast<int64_t>(index_), number.value, exit_code, signal);
  if (shared_.timeline.Chance(0.9)) {
    FromProcess(number, agent::ProcessDied{number},
                shared_.timeline.Between(absl::Microseconds(50), absl::Milliseconds(2)));
  }
  FromProcess(number, agent::ProcessExited{number, exit_code, signal, ""},
              shared_.timeline.Between(absl::Milliseconds(1), absl::Milliseconds(500)));
}

void NodeHost::FromProcess(agent::ProcessNumber number, agent::Event event, absl::Duration delay) {
  const auto found = processes_.find(number);
  if (found == processes_.end()) return;
  Instant& last = found->second.to_daemon;
  last = std::max(last + absl::Nanoseconds(1), shared_.timeline.now() + delay);
  shared_.timeline.At(last, [this, number, life = life_, event = std::move(event)] {
    if (life != life_) return;
    if (std::holds_alternative<agent::ProcessExited>(event)) processes_.erase(number);
    Feed(event);
  });
}

void NodeHost::Ask(agent::ProcessNumber number, std::function<void(CopyMemory&)> question,
                   std::function<void()> answered) {
  const auto found = processes_.find(number);
  if (found == processes_.end()) return;
  Instant& last = found->second.to_daemon;
  last =
      std::max(last + absl::Nanoseconds(1), shared_.timeline.now() + shared_.network.LocalDelay());
  shared_.timeline.At(last, [this, number, life = life_, question = std::move(question),
                             answered = std::move(answered)] {
    if (life != life_) return;
    const auto answer = [this, number, question, answered] {
      question(memory_);
      ToProcess(number, [answered](RankProcess& process) { process.Do(answered); });
    };
    if (!paused_since_.has_value()) return answer();
    asked_.push_back(answer);
  });
}

// Of a job that it was to end, and of no epoch behind that.
void NodeHost::Carry(const agent::FreeHostMemory& order) {
  for (const CopyMemory::Owner& owner : memory_.Free(order.job)) {
    const auto stopped = stopped_.find(owner.job);
    if (stopped == stopped_.end() || stopped->second < owner.epoch) {
      shared_.ledger.Violate(absl::StrCat(name_, " lets copies of ", ToString(owner.job), " epoch ",
                                          owner.epoch.value, " go, and nobody has stopped it"));
    }
    shared_.ledger.OnCopyMemoryGone(owner.job, owner.epoch);
  }
}

void NodeHost::ToProcess(agent::ProcessNumber number, std::function<void(RankProcess&)> order) {
  const auto found = processes_.find(number);
  if (found == processes_.end()) return;
  Instant& last = found->second.to_process;
  last =
      std::max(last + absl::Nanoseconds(1), shared_.timeline.now() + shared_.network.LocalDelay());
  shared_.timeline.At(last, [this, number, life = life_, order = std::move(order)] {
    const auto process = processes_.find(number);
    if (life == life_ && process != processes_.end() && !process->second.process->dead())
      order(*process->second.process);
  });
}

}  // namespace phalanx::sim

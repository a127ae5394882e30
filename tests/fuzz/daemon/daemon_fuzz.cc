// Any row of what a coordinator says to a node's daemon and what ranks say to it, of a coordinator
// that lies and ranks that are broken among them: the daemon's machine takes it, rests, and sends
// nothing that the other end cannot read.
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "google/protobuf/duration.pb.h"
#include "phalanx/v1/rank.pb.h"
#include "phalanx/v1/worker_service.pb.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/messages.h"
#include "tests/fuzz/support/script.h"
#include "worker/agent/machine/machine.h"
#include "worker/agent/translate.h"
#include "worker/channel/frame_socket.h"

namespace phalanx::fuzz {
namespace {

using agent::Event;
using google::protobuf::Message;

constexpr int32_t kDevices = 3;
constexpr size_t kSentBytesMax = 8 << 20;  // what a coordinator takes in one message
// Events that follow one another without anything from outside.
constexpr int kEventsMax = 20'000;
// A coordinator may ask for a heartbeat each 10 ms, so this much time is below kEventsMax.
constexpr int64_t kTimeMax = 100;

enum Kind : size_t {
  kFromCoordinator,
  kFromRank,
  kFromOtherRank,
  kFrames,
  kTime,
  kHappens,
  kKinds
};

const std::array<const Message*, kKinds>& Prototypes() {
  static const std::array<const Message*, kKinds> prototypes = {
      &v1::OpenSessionResponse::default_instance(),
      &v1::ToDaemon::default_instance(),
      &v1::ToDaemon::default_instance(),
      nullptr,
      &google::protobuf::Duration::default_instance(),
      nullptr};
  return prototypes;
}

agent::MachineOptions Options() {
  agent::MachineOptions options;
  options.node = "n";
  options.devices = kDevices;
  options.seed = 1;
  options.check_interval = absl::Minutes(1);
  return options;
}

// The daemon's machine with a world that does what it is told, until a script says otherwise.
class Daemon {
 public:
  Daemon() : machine_(Options(), now_) { Rest(); }

  const std::string& wrong() const { return wrong_; }

  void Play(const Step& step) {
    switch (step.kind) {
      case kFromCoordinator: {
        v1::OpenSessionResponse message;
        if (!message.ParseFromString(step.bytes)) return;
        if (const std::optional<Event> event = agent::EventOf(session_, message)) Feed(*event);
        return;
      }
      case kFromRank:
      case kFromOtherRank:
        return Hear(step.kind == kFromRank ? last_process_ : agent::ProcessNumber{1}, step.bytes);
      case kFrames: {
        channel::FrameDecoder decoder;
        decoder.Append(step.bytes);
        for (auto frame = decoder.Next(); frame.ok() && frame->has_value(); frame = decoder.Next())
          Hear(last_process_, **frame);
        return;
      }
      case kTime: {
        google::protobuf::Duration span;
        if (!span.ParseFromString(step.bytes)) return;
        return Advance(absl::Seconds(std::clamp<int64_t>(span.seconds(), 0, kTimeMax)));
      }
      default:
        if (!step.bytes.empty()) Happen(static_cast<uint8_t>(step.bytes[0]), step.bytes);
    }
  }

 private:
  void Hear(agent::ProcessNumber process, const std::string& bytes) {
    v1::ToDaemon message;
    if (!message.ParseFromString(bytes))
      return Feed(agent::ChannelFailed{process, "a frame is no ToDaemon message"});
    for (const Event& event : agent::EventsOf(process, message)) Feed(event);
  }

  // What is neither said by a coordinator nor by a rank.
  void Happen(uint8_t what, absl::string_view bytes) {
    const int32_t number = bytes.size() > 1 ? static_cast<uint8_t>(bytes[1]) : 0;
    const agent::ProcessNumber process{1 + number % 4};
    switch (what % 11) {
      case 0:
        return Feed(agent::SessionClosed{
            session_, absl::Status(static_cast<absl::StatusCode>(number % 17), "gone")});
      case 1:
        return Feed(agent::ProcessExited{process, number, number % 16, "the end"});
      case 2:
        return Feed(agent::ProcessDied{process});
      case 3:
        return Feed(agent::ChannelFailed{process, "closed"});
      case 4:
        return Feed(agent::ProcessRan{process, number % 2 == 1, number % 3 == 1});
      case 5:
        return Feed(agent::DeviceFaulted{number % 5 - 1, 48 + number % 64});
      case 6:
        return Feed(agent::TerminationRequested{});
      case 7:
        return Feed(agent::Stalled{absl::Seconds(number)});
      case 8:
        return Feed(agent::CheckEnded{.check = check_});
      case 9:
        return Feed(agent::MessageWritten{session_});
      default: {
        agent::DataOutcome outcome{.digest = "d"};
        if (number % 4 == 1) outcome.status = absl::InvalidArgumentError("no shards");
        return Feed(agent::DataPrepared{request_, std::move(outcome)});
      }
    }
  }

  void Advance(absl::Duration span) {
    const Instant end = now_ + span;
    for (int count = 0; wrong_.empty(); ++count) {
      if (count == kEventsMax) return Fault("deadlines without end");
      const Instant next = std::min(machine_.NextDeadline(), end);
      now_ = std::max(now_, next);
      Feed(agent::DeadlineReached{});
      if (machine_.NextDeadline() > end) break;
    }
    now_ = std::max(now_, end);
  }
  void Rest() { Advance(absl::ZeroDuration()); }

  void Feed(const Event& first) {
    std::deque<Event> events = {first};
    for (int count = 0; !events.empty() && wrong_.empty(); ++count) {
      if (count == kEventsMax) return Fault("events without end");
      const Event event = std::move(events.front());
      events.pop_front();
      for (const agent::Action& action : machine_.Step(now_, event)) {
        if (exited_) return Fault("an order behind the exit");
        std::visit([&](const auto& order) { Carry(order, events); }, action);
      }
    }
  }

  template <typename Order>
  void Carry(const Order&, std::deque<Event>&) {}
  void Carry(const agent::OpenSession& order, std::deque<Event>&) { session_ = order.session; }
  void Carry(const agent::CloseSession& order, std::deque<Event>& events) {
    events.push_back(agent::SessionClosed{order.session, absl::OkStatus()});
  }
  void Carry(const agent::SendHeartbeat& order, std::deque<Event>& events) {
    Send(agent::MessageOf(order, {}), events);
  }
  void Carry(const agent::SendCommandResult& order, std::deque<Event>& events) {
    Send(agent::MessageOf(order), events);
  }
  void Carry(const agent::SendReport& order, std::deque<Event>& events) {
    Send(agent::MessageOf(order), events);
  }
  void Send(const v1::OpenSessionRequest& message, std::deque<Event>& events) {
    const std::string bytes = message.SerializeAsString();
    v1::OpenSessionRequest read;
    if (bytes.size() > kSentBytesMax) Fault("a message that is too long");
    if (!read.ParseFromString(bytes)) Fault("a message that cannot be read");
    events.push_back(agent::MessageWritten{session_});
  }
  void Carry(const agent::PrepareData& order, std::deque<Event>&) { request_ = order.request; }
  void Carry(const agent::StartProcess& order, std::deque<Event>& events) {
    const bool keeps = order.device == agent::kNoDevice;  // copies of state for others
    if (!keeps && (order.device < 0 || order.device >= kDevices)) Fault("a process on no device");
    last_process_ = order.process;
    events.push_back(agent::ProcessStarted{order.process, absl::OkStatus()});
  }
  void Carry(const agent::SendRunEpoch& order, std::deque<Event>&) {
    Told<v1::Assign>(order.assign->payload);
  }
  void Carry(const agent::SendBeginEpoch& order, std::deque<Event>&) {
    Told<v1::BeginEpoch>(order.payload);
  }
  void Carry(const agent::SendRendezvous& order, std::deque<Event>&) {
    Told<v1::Rendezvous>(order.payload);
  }
  // A rank is told nothing that it cannot read.
  template <typename Payload>
  void Told(const std::string& payload) {
    if (!Payload().ParseFromString(payload)) Fault("an order that a rank cannot read");
  }
  void Carry(const agent::StartCheck& order, std::deque<Event>&) { check_ = order.check; }
  void Carry(const agent::KillCheck& order, std::deque<Event>& events) {
    events.push_back(agent::CheckEnded{.check = order.check});
  }
  void Carry(const agent::KillProcess& order, std::deque<Event>& events) {
    events.push_back(agent::ProcessExited{order.process, 0, 9, ""});
  }
  void Carry(const agent::UploadLogs& order, std::deque<Event>& events) {
    events.push_back(agent::UploadStarted{order.command_number, absl::OkStatus()});
  }
  void Carry(const agent::TryPeer& order, std::deque<Event>& events) {
    events.push_back(agent::PeerTried{
        .command_number = order.command_number, .of = order.of, .listens_at = "127.0.0.1:1"});
  }
  void Carry(const agent::Exit&, std::deque<Event>&) { exited_ = true; }

  void Fault(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  Instant now_ = absl::UnixEpoch() + absl::Hours(1);
  agent::Machine machine_;
  agent::SessionNumber session_;
  agent::ProcessNumber last_process_;
  agent::RequestNumber request_;
  agent::CheckNumber check_;
  bool exited_ = false;
  std::string wrong_;
};

template <typename Message>
Step Of(Kind kind, const Message& message) {
  return {.kind = kind, .bytes = message.SerializeAsString()};
}
Step Welcome(uint64_t coordinator, uint64_t store) {
  v1::OpenSessionResponse message;
  message.mutable_welcome()->set_coordinator_incarnation(coordinator);
  message.mutable_welcome()->set_store(store);
  return Of(kFromCoordinator, message);
}
v1::OpenSessionResponse Command(uint64_t number) {
  v1::OpenSessionResponse message;
  message.mutable_command()->set_command_number(number);
  return message;
}
Step Assign(uint64_t number, int64_t epoch) {
  v1::OpenSessionResponse message = Command(number);
  v1::Assign& assign = *message.mutable_command()->mutable_assign();
  assign.set_job(7);
  assign.set_epoch(epoch);
  assign.set_writes_checkpoints(epoch == 2);
  v1::NodeDevices& node = *assign.mutable_layout()->mutable_placement()->add_nodes();
  node.set_node("n");
  node.add_devices(0);
  node.add_devices(1);
  return Of(kFromCoordinator, message);
}
Step Stop(uint64_t number) {
  v1::OpenSessionResponse message = Command(number);
  message.mutable_command()->mutable_stop()->set_job(7);
  message.mutable_command()->mutable_stop()->set_epoch(2);
  return Of(kFromCoordinator, message);
}
Step Happens(char what, char number = 0) { return {.kind = kHappens, .bytes = {what, number}}; }
Step Passes(int64_t seconds) {
  google::protobuf::Duration span;
  span.set_seconds(seconds);
  return Of(kTime, span);
}
Step Hello(Kind rank) {
  v1::ToDaemon message;
  message.mutable_hello();
  return Of(rank, message);
}
Step Progress(int64_t epoch, int64_t step) {
  v1::ToDaemon message;
  message.mutable_progress()->set_epoch(epoch);
  message.mutable_progress()->set_step(step);
  message.mutable_progress()->set_step_seconds(1);
  return Of(kFromRank, message);
}

// A job in two epochs, of which the second is stopped.
std::vector<Step> AJob() {
  return {Welcome(9, 5),  Assign(1, 1),   Happens(10),   Hello(kFromRank), Hello(kFromOtherRank),
          Progress(1, 1), Progress(1, 2), Passes(2),     Assign(2, 2),     Happens(0, 14),
          Passes(2),      Welcome(9, 5),  Happens(1, 0), Stop(3),          Passes(60)};
}

}  // namespace

std::string Check(absl::string_view bytes) {
  Daemon daemon;
  for (const Step& step : ReadScript(bytes, kKinds)) {
    daemon.Play(step);
    if (!daemon.wrong().empty()) return daemon.wrong();
  }
  return "";
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus = {WriteScript(AJob())};
  std::string frame;
  v1::ToDaemon warmed;
  warmed.mutable_warmed();
  if (channel::AppendFrame(warmed, &frame).ok())
    corpus.push_back(WriteScript({Welcome(9, 5), Assign(1, 1), Happens(10), {kFrames, frame}}));
  // Commands and messages of ranks of every kind, in the midst of a job.
  Prng prng(1);
  for (int i = 0; i < 60; ++i) {
    std::vector<Step> steps = AJob();
    steps.resize(9);
    for (int k = 0; k < 4; ++k) {
      v1::OpenSessionResponse response = Command(static_cast<uint64_t>(2 + k));
      Fill(*response.mutable_command(), prng);
      response.mutable_command()->set_command_number(static_cast<uint64_t>(2 + k));
      steps.push_back(Of(kFromCoordinator, response));
      v1::ToDaemon said;
      Fill(said, prng);
      if (said.has_report()) said.mutable_report()->set_epoch(1);
      steps.push_back(Of(k % 2 == 0 ? kFromRank : kFromOtherRank, said));
    }
    steps.push_back(Passes(30));
    corpus.push_back(WriteScript(steps));
  }
  return corpus;
}

std::string Mutated(absl::string_view bytes, Prng& prng) {
  return MutatedScript(bytes, Prototypes(), prng);
}

}  // namespace phalanx::fuzz

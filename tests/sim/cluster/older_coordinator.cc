// A daemon comes upon a coordinator whose store is older than what the daemon has seen: one that
// was put back from a backup, or that another one has taken over from. It greets the daemon, says
// again what it had told it, and is gone; what is said to it is lost with it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster/node_host.h"

namespace phalanx::sim {
namespace {

constexpr size_t kJobsMax = 8;  // whose assignments are remembered: the newest

// Of no coordinator that there is (CoordinatorHost::life).
uint64_t OlderIncarnation(const Stream& stream) {
  return (uint64_t{1} << 32) + static_cast<uint64_t>(stream.session.value);
}

}  // namespace

void NodeHost::RememberAssignment(const v1::OpenSessionResponse& message) {
  if (!message.command().has_assign()) return;
  const v1::Assign& assign = message.command().assign();
  std::map<Epoch, v1::Command>& told = assigned_[JobId{assign.job()}];
  told.emplace(Epoch{assign.epoch()}, message.command());
  if (told.size() > 2) told.erase(told.begin());
  if (assigned_.size() > kJobsMax) assigned_.erase(assigned_.begin());
}

std::vector<v1::Command> NodeHost::OlderAssignments() const {
  std::vector<v1::Command> older;
  for (const auto& [job, told] : assigned_) {
    const auto lowest = lowest_.find(job);
    for (const auto& [epoch, command] : told) {
      if (lowest != lowest_.end() && epoch < lowest->second) older.push_back(command);
    }
  }
  return older;
}

void NodeHost::MeetOlderCoordinator() {
  if (!up() || OlderAssignments().empty()) return;
  shared_.timeline.Note("node $0 will come upon an older coordinator",
                        static_cast<int64_t>(index_));
  meets_older_ = true;
  BreakStream(/*tell_daemon=*/true, /*tell_coordinator=*/true);
}

void NodeHost::GreetFromOlder(const StreamPtr& stream) {
  stream->up->Break();
  v1::OpenSessionResponse message;
  message.mutable_welcome()->mutable_heartbeat_interval()->set_seconds(1);
  message.mutable_welcome()->set_coordinator_incarnation(OlderIncarnation(*stream));
  message.mutable_welcome()->set_store(kStore);
  Receive(stream, message);
  uint64_t number = 0;
  for (const v1::Command& command : OlderAssignments()) {
    *message.mutable_command() = command;
    message.mutable_command()->set_command_number(++number);
    ++shared_.older_assignments;
    Receive(stream, message);
  }
  shared_.timeline.After(
      shared_.timeline.Between(absl::Milliseconds(1), absl::Seconds(3)), [this, stream] {
        OnStreamClosed(stream, absl::UnavailableError("another coordinator serves"));
      });
}

}  // namespace phalanx::sim

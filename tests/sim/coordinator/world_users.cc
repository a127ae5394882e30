// What the users and operators of the world ask for.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/coordinator/world.h"

namespace phalanx::coordinator {

void World::Submit() {
  auto request =
      std::make_shared<JobRequest>(JobRequest{.name = absl::StrCat("job", prng_.Below(12)),
                                              .steps = 10,
                                              .devices = 1 + static_cast<int32_t>(prng_.Below(6))});
  request->world = request->devices;
  request->checkpoints = Chance(2);
  request->standby = Chance(2);
  request->priority = static_cast<int32_t>(prng_.Below(3));
  request->preemptible = Chance(2);
  if (Chance(3)) request->time_limit = absl::Seconds(1 + static_cast<int64_t>(prng_.Below(10)));
  Feed(SubmitRequested{Token{++token_}, request,
                       prng_.Below(4) == 0 ? absl::StrCat("request", prng_.Below(6)) : ""});
}

// A second daemon by the name of a node, which says hello and nothing more.
void World::OpenImpostor() {
  const FakeNode& node = nodes_[prng_.Below(nodes_.size())];
  const SessionId session{++session_};
  impostors_.push_back(session);
  Feed(SessionOpened{session, WorkerHello{.node = node.name,
                                          .incarnation = Incarnation{++incarnation_},
                                          .devices = node.devices,
                                          .store = options_.store}});
}

void World::CloseOneSession() {
  if (!ended_sessions_.empty()) {
    const SessionId session = ended_sessions_.front();
    ended_sessions_.erase(ended_sessions_.begin());
    Feed(SessionClosed{session});
  } else if (!impostors_.empty()) {
    const SessionId session = impostors_.front();
    impostors_.erase(impostors_.begin());
    Feed(SessionClosed{session});
  }
}

// Its worker says what checks have found, if it is there.
void World::CheckDevicesOf(const NodeName& name) {
  const auto node = machine_->nodes().find(name);
  if (node == machine_->nodes().end() || !node->second.connected()) return;
  const Instant ended = now_ + absl::Nanoseconds(++token_);  // of no other check
  auto check = std::make_shared<job::NodeCheck>();
  for (size_t i = 0; i < node->second.device_jobs.size(); ++i) {
    check->devices.push_back(
        {.device = static_cast<int32_t>(i),
         .verdict = Chance(3) ? job::CheckVerdict::kFailed : job::CheckVerdict::kPassed,
         .reason = "wrong",
         .time = ended});
  }
  Feed(HeartbeatReceived{.session = node->second.session,
                         .draining = node->second.draining,
                         .check = std::move(check)});
}

// Jobs are suspended and resumed, nodes cordoned, drained and put into service again.
void World::Operate() {
  const JobId job{1 + static_cast<int64_t>(prng_.Below(machine_->jobs().size() + 1))};
  const NodeName node = nodes_[prng_.Below(nodes_.size())].name;
  std::vector<JobId> savers;  // jobs that have state to leave with
  for (const auto& [id, held] : machine_->jobs()) {
    if (held.state.phase == job::JobPhase::kRunning && held.state.request->checkpoints)
      savers.push_back(id);
  }
  switch (prng_.Below(7)) {
    case 0:
      return Feed(SuspensionRequested{
          Token{++token_}, savers.empty() ? job : savers[prng_.Below(savers.size())], true});
    case 1:
    case 2:
      return Feed(SuspensionRequested{Token{++token_}, job, false});
    case 3:
      return Feed(NodeMarkRequested{Token{++token_}, node, std::nullopt});
    case 4:
      return CheckDevicesOf(node);
    default:
      return Feed(NodeMarkRequested{Token{++token_}, node,
                                    NodeMark{.drains = Chance(2), .reason = "new fan"}, "ops",
                                    Chance(2)});
  }
}

// Nobody keeps anything from going on.
void World::PutAllInOrder() {
  std::vector<JobId> suspended;
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.state.suspended && !job.state.IsTerminal()) suspended.push_back(id);
  }
  for (const JobId id : suspended) Feed(SuspensionRequested{Token{++token_}, id, false});
  std::vector<NodeName> marked;
  for (const auto& [name, node] : machine_->nodes()) {
    if (node.mark.has_value() || !node.failed_checks.empty()) marked.push_back(name);
  }
  for (const NodeName& name : marked) Feed(NodeMarkRequested{Token{++token_}, name, std::nullopt});
}

}  // namespace phalanx::coordinator

// Processes that give copies of state to ranks of other nodes (machine.h).
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/agent/machine/machine.h"

namespace phalanx::agent {
namespace {

// The place of this node among those; kNoPlace: there is none.
constexpr int32_t kNoPlace = -1;
int32_t KeeperOn(const NodeName& self, const AssignCommand& command) {
  int32_t place = 0;
  for (const NodeDevices& node : command.placement) {
    for (size_t i = 0; i < node.devices.size(); ++i, ++place) {
      if (node.node == self && command.keepers.contains(place)) return place;
    }
  }
  return kNoPlace;
}

}  // namespace

void Machine::StartKeeper(const std::shared_ptr<const AssignCommand>& command) {
  const int32_t place = KeeperOn(options_.node, *command);
  if (place == kNoPlace) return;
  last_process_ = ProcessNumber{last_process_.value + 1};
  processes_[last_process_] = {
      .job = command->job,
      .device = kNoDevice,
      .epoch = command->epoch,
      .rank = place,
      .kill_at = now_ + options_.hello_timeout,
      .fault = absl::StrCat("it said nothing within ", absl::FormatDuration(options_.hello_timeout),
                            " of its start"),
      .keeps = true};
  Log(absl::StrCat(ToString(command->job), " epoch=", command->epoch.value,
                   " gives copies of state to other nodes, if it has some"));
  actions_.push_back(
      StartProcess{last_process_, command->job, command->epoch, place, kNoDevice, store_, command});
}

void Machine::AddKeeper(Assignment& assignment, const AssignCommand& again) {
  if (!assignment.rank_of_device.empty() || KeeperOn(options_.node, again) == kNoPlace) return;
  if (KeeperOn(options_.node, *assignment.command) != kNoPlace) return;
  assignment.command = std::make_shared<const AssignCommand>(again);
  StartKeeper(assignment.command);
}

void Machine::RunKeeper(ProcessNumber number, Process& process) {
  const auto assigned = assignments_.find(process.job);
  if (assigned == assignments_.end() || assigned->second.command->epoch != process.epoch)
    return End(number, process, options_.shutdown_grace, "nobody asks for copies any more");
  const Assignment& assignment = assigned->second;
  process.state = ProcessState::kRunning;
  actions_.push_back(SendRunEpoch{.process = number,
                                  .assign = assignment.command,
                                  .rank = process.rank,
                                  .device = kNoDevice,
                                  .store = store_,
                                  .keeps = true});
  for (const std::string& payload : assignment.rendezvous) {
    actions_.push_back(SendRendezvous{number, payload});
  }
  if (!assignment.begin.empty()) actions_.push_back(SendBeginEpoch{number, assignment.begin});
}

void Machine::TellNoKeeper(const Process& process, absl::string_view why) {
  if (process.job == JobId{}) return;
  reports_.Add({process.job, process.epoch, process.rank,
                RankFault{absl::StrCat("it gives no copies of state: ", why)}},
               ReportKind::kOther);
  SendQueuedReports();
}

}  // namespace phalanx::agent

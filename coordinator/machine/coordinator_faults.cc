// Faults on demand: checked, recorded, sent once, answered once their node has taken them on.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/ended_job.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

std::string Named(const job::InjectedFault& fault, const NodeName& node) {
  return absl::StrCat("rank ", fault.rank, " (node ", node, "): ", job::Describe(fault));
}

// Of a mute rank, which is there.
absl::Status CheckMute(const JobState& state, const Run& run, int32_t rank) {
  const std::string name = absl::StrCat("rank ", rank, " of ", ToString(state.id));
  if (state.request->device_kind == job::DeviceKind::kGpu) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is on a GPU, where NCCL carries messages: mute is of ranks on CPU"));
  }
  const auto working = std::count_if(run.ranks.begin(), run.ranks.end(),
                                     [](const RankState& one) { return one.used; });
  if (working > 1) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(name, " trains alone: mute is of a message to another rank"));
}

// A step or a phase that the job never comes to: the fault would wait for it for ever.
absl::Status CheckPlace(const JobState& state, const job::InjectedFault& fault) {
  const JobRequest& request = *state.request;
  if (fault.at_step > request.steps) {
    return absl::NotFoundError(absl::StrCat(ToString(state.id), " has no step ", fault.at_step,
                                            "; its last one is ", request.steps));
  }
  if (fault.phase == job::FaultPhase::kCheckpoint && !request.checkpoints) {
    return absl::NotFoundError(
        absl::StrCat(ToString(state.id), " writes no checkpoints: it has no phase checkpoint"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Coordinator::CheckInject(const InjectRequested& event) const {
  if (!options_.allow_inject) {
    return absl::PermissionDeniedError(
        "this coordinator brings no faults about on demand: it runs without --allow-inject; "
        "ask an operator for one that has it");
  }
  RETURN_IF_ERROR(ViolationsStatus(job::CheckFault(event.fault, job::kFaultMessage)));
  const auto found = jobs_.find(event.job);
  if (found == jobs_.end()) return NoSuchJob(event.job);
  const JobState& state = found->second.state;
  if (state.phase != job::JobPhase::kRunning || !found->second.run.has_value()) {
    return NoFaultsFor(event.job, state.phase);
  }
  const Run& run = *found->second.run;
  const int32_t rank = event.fault.rank;
  const Team* team = run.TeamOfRank(rank);
  if (team == nullptr) {
    return absl::NotFoundError(absl::StrCat(ToString(event.job), " has no rank ", rank,
                                            "; its ranks are 0 to ", run.ranks.size() - 1));
  }
  if (!run.ranks[static_cast<size_t>(rank)].used) {
    return absl::NotFoundError(absl::StrCat("rank ", rank, " of ", ToString(event.job),
                                            " has no work in epoch ", state.epoch.value));
  }
  RETURN_IF_ERROR(CheckPlace(state, event.fault));
  const auto node = nodes_.find(team->node);
  if (node == nodes_.end() || !node->second.connected()) {
    return absl::FailedPreconditionError(absl::StrCat("node ", team->node, ", which has rank ",
                                                      rank, " of ", ToString(event.job),
                                                      ", is not connected"));
  }
  if (event.fault.kind == job::FaultKind::kMute) return CheckMute(state, run, rank);
  return absl::OkStatus();
}

void Coordinator::On(const InjectRequested& event) {
  if (absl::Status refusal = CheckInject(event); !refusal.ok()) {
    actions_.push_back(AnswerInject{event.token, std::move(refusal)});
    return;
  }
  Job& job = jobs_.at(event.job);
  const NodeName& node = job.run->TeamOfRank(event.fault.rank)->node;
  Commit(job, EventRecorded{"FaultInjected", Named(event.fault, node), job.state.epoch});
  Tell(job, NodeCommand{node, nodes_.at(node).incarnation,
                        InjectFault{event.token, event.job, job.state.epoch, event.fault}});
}

void Coordinator::OnInjected(const Node& node, const InjectFault& command,
                             const CommandFinished& result) {
  if (result.code == 0) {
    actions_.push_back(
        AnswerInject{command.token, Injected{command.job, command.epoch, node.name}});
    return;
  }
  const std::string refusal =
      absl::StrCat("node ", node.name, " has not taken the fault on: ", result.message);
  actions_.push_back(AnswerInject{command.token, absl::FailedPreconditionError(refusal)});
  Job* job = FindJob(command.job);
  if (job == nullptr || job->state.IsTerminal()) return;
  Commit(*job, EventRecorded{"FaultNotInjected",
                             absl::StrCat(Named(command.fault, node.name), ": ", result.message),
                             job->state.epoch});
}

void Coordinator::RefuseInject(const InjectFault& command, const NodeName& node) {
  actions_.push_back(AnswerInject{
      command.token,
      absl::FailedPreconditionError(absl::StrCat(
          "node ", node, " disconnected before it answered: whether it has taken the fault on ",
          "nobody knows"))});
}

void Coordinator::RefuseInjects(const Node& node) {
  for (const Outstanding& outstanding : node.outstanding) {
    if (const auto* inject = std::get_if<InjectFault>(&outstanding.command)) {
      RefuseInject(*inject, node.name);
    }
  }
}

}  // namespace phalanx::coordinator

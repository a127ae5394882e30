// Commands of the coordinator, each of which is answered once.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/machine/machine.h"

namespace phalanx::agent {
namespace {

absl::Status Superseded(JobId job, Epoch epoch) {
  return absl::AbortedError(
      absl::StrCat("epoch ", epoch.value, " of ", ToString(job), " does not run here, or no more"));
}

}  // namespace

void Machine::Run(uint64_t number, const UnknownCommand&) {
  Answer(number, absl::UnimplementedError("this worker does not know the command"));
}

void Machine::Run(uint64_t number, const PrepareDataCommand& command) {
  last_request_ = RequestNumber{last_request_.value + 1};
  data_requests_[last_request_] = {.job = command.job,
                                   .document = command.document,
                                   .command_number = number,
                                   .coordinator = coordinator_.value};
  actions_.push_back(
      PrepareData{last_request_, command.job, command.document, command.choose_checkpoint});
}

void Machine::Run(uint64_t number, const AssignCommand& command) {
  if (draining_) return Answer(number, absl::UnavailableError("the worker is stopping"));
  const auto stopped = stopped_epoch_.find(command.job);
  const auto highest = highest_epoch_.find(command.job);
  const Epoch last_stopped = stopped == stopped_epoch_.end() ? Epoch{} : stopped->second;
  const Epoch last = highest == highest_epoch_.end() ? Epoch{} : highest->second;
  if (command.epoch < last || command.epoch <= last_stopped) {
    return Answer({.command_number = number,
                   .status = Superseded(command.job, command.epoch),
                   .epoch_seen = std::max(last, last_stopped)});
  }
  const auto present = assignments_.find(command.job);
  if (present != assignments_.end() && present->second.command->epoch == command.epoch) {
    Assignment& assignment = present->second;
    AddKeeper(assignment, command);
    assignment.to_answer.push_back(number);
    return AnswerIfStarted(assignment);
  }
  RememberEpoch(command.job, command.epoch);
  Assignment assignment;
  assignment.takes_over = command.goes_on || present != assignments_.end();
  const absl::Status placed =
      CheckPlacement(command, assignment.takes_over, &assignment.rank_of_device);
  if (!placed.ok()) return Answer(number, placed);
  if (present != assignments_.end()) {
    AnswerAssign(present->second, absl::AbortedError("superseded by a newer epoch"));
    if (command.goes_on) {
      TellNeverRan(present->second);
      // Nor any that went by while the coordinator was out of reach.
      for (Epoch missed{present->second.command->epoch.value + 1}; missed < command.epoch;
           ++missed.value) {
        for (const auto& [device, rank] : present->second.rank_of_device)
          reports_.Add({command.job, missed, rank, RankNeverRan{}}, ReportKind::kOther);
      }
      SendQueuedReports();
    } else {
      reports_.Retire(command.job, Epoch{command.epoch.value - 1});
    }
  }
  const bool has_work = !assignment.rank_of_device.empty();
  assignment.command = std::make_shared<const AssignCommand>(command);
  assignment.to_answer.push_back(number);
  for (const auto& [device, rank] : assignment.rank_of_device) {
    assignment.to_start.insert(device);
  }
  Log(absl::StrCat(ToString(command.job), " epoch=", command.epoch.value,
                   " assigned local_ranks=", assignment.rank_of_device.size()));
  Assignment& stored = assignments_[command.job] = std::move(assignment);
  for (int32_t device = 0; device < options_.devices; ++device) {
    if (const absl::Status lost = LostDevice(device); !lost.ok())
      GoWithout(stored, device, job::FailureKind::kDeviceFailed, lost);
  }
  RememberWork(stored);
  if (!has_work) StartKeeper(stored.command);
  const auto outcome = outcomes_.find(command.job);
  if (outcome != outcomes_.end() && outcome->second.first == command.document) {
    stored.data = outcome->second.second;
    return Adopt(command.job, stored);
  }
  last_request_ = RequestNumber{last_request_.value + 1};
  data_requests_[last_request_] = {
      .job = command.job, .document = command.document, .epoch = command.epoch};
  actions_.push_back(PrepareData{last_request_, command.job, command.document});
}

void Machine::Run(uint64_t number, const BeginEpochCommand& command) {
  const auto present = assignments_.find(command.job);
  if (present == assignments_.end() || present->second.command->epoch != command.epoch) {
    return Answer(number, Superseded(command.job, command.epoch));
  }
  if (present->second.begin.empty()) {
    present->second.begin = command.payload;
    reports_.Retire(command.job, Epoch{command.epoch.value - 1});
    for (const auto& [process_number, process] : processes_) {
      // Who is on its way there is told when it has come.
      if (process.next != command.epoch && IsIn(process, command.job, command.epoch))
        actions_.push_back(SendBeginEpoch{process_number, command.payload});
    }
  }
  Answer(number, absl::OkStatus());
}

void Machine::Run(uint64_t number, const RendezvousCommand& command) {
  const auto present = assignments_.find(command.job);
  if (present == assignments_.end() || present->second.command->epoch != command.epoch) {
    return Answer(number, Superseded(command.job, command.epoch));
  }
  present->second.rendezvous.push_back(command.payload);
  for (const auto& [process_number, process] : processes_) {
    if (IsIn(process, command.job, command.epoch))
      actions_.push_back(SendRendezvous{process_number, command.payload});
  }
  Answer(number, absl::OkStatus());
}

std::optional<ProcessNumber> Machine::ProcessOf(JobId job, Epoch epoch, int32_t rank) const {
  for (const auto& [process_number, process] : processes_) {
    if (process.job == job && process.state == ProcessState::kRunning && process.epoch == epoch &&
        process.rank == rank) {
      return process_number;
    }
  }
  return std::nullopt;
}

void Machine::Run(uint64_t number, const PublishCommand& command) {
  const auto process = ProcessOf(command.job, command.epoch, command.rank);
  if (!process.has_value()) return Answer(number, Superseded(command.job, command.epoch));
  actions_.push_back(SendPublish{*process, command.payload});
  Answer(number, absl::OkStatus());
}

void Machine::Run(uint64_t number, const WriteIncidentCommand& command) {
  const auto process = ProcessOf(command.job, command.epoch, command.rank);
  if (!process.has_value()) return Answer(number, Superseded(command.job, command.epoch));
  actions_.push_back(SendWriteIncident{*process, command.payload});
  Answer(number, absl::OkStatus());
}

template <typename Order>
void Machine::TellAllIn(uint64_t number, JobId job, Epoch epoch, const std::string& payload) {
  bool runs = false;
  for (const auto& [process_number, process] : processes_) {
    if (process.job != job || process.state != ProcessState::kRunning || process.epoch != epoch)
      continue;
    actions_.push_back(Order{process_number, payload});
    runs = true;
  }
  Answer(number, runs ? absl::OkStatus() : Superseded(job, epoch));
}

void Machine::Run(uint64_t number, const WishCommand& command) {
  TellAllIn<SendWish>(number, command.job, command.epoch, command.payload);
}

void Machine::Run(uint64_t number, const PrepareStandbyCommand& command) {
  TellAllIn<SendPrepareStandby>(number, command.job, command.epoch, command.payload);
}

void Machine::Run(uint64_t number, const StopCommand& command) {
  // In place of a command that is not wanted any more: of a coordinator of a release before.
  if (command.job == JobId{}) return Answer(number, absl::OkStatus());
  const auto highest = highest_epoch_.find(command.job);
  if (highest != highest_epoch_.end() && command.epoch < highest->second) {
    return Answer(number, Superseded(command.job, command.epoch));
  }
  RememberStopped(command.job, command.epoch);
  if (const auto present = assignments_.find(command.job); present != assignments_.end()) {
    AnswerAssign(present->second, absl::AbortedError("stopped"));
    assignments_.erase(present);
  }
  outcomes_.erase(command.job);
  CallOffData(command.job);
  CallOffWarming(command.job);
  reports_.Retire(command.job, command.epoch);
  Log(absl::StrCat(ToString(command.job), " epoch=", command.epoch.value, " stopped reason=\"",
                   command.reason, "\""));
  EndAll(command.job, command.grace, command.reason);
  stops_.push_back({command.job, number});
  AnswerStops();
}

void Machine::Run(uint64_t number, const InjectCommand& command) {
  const auto present = assignments_.find(command.job);
  if (present == assignments_.end() || present->second.command->epoch != command.epoch) {
    return Answer(number, Superseded(command.job, command.epoch));
  }
  if (job::ToString(command.fault.kind).empty() || !job::CheckFault(command.fault, {}).empty()) {
    return Answer(number, absl::UnimplementedError("this worker does not know the fault"));
  }
  const std::map<int32_t, int32_t>& ranks = present->second.rank_of_device;
  const auto found = std::find_if(processes_.begin(), processes_.end(), [&](const auto& entry) {
    const Process& process = entry.second;
    if (process.job != command.job || process.state == ProcessState::kEnding || process.killed)
      return false;
    const auto rank = ranks.find(process.device);
    return rank != ranks.end() && rank->second == command.fault.rank;
  });
  if (found == processes_.end()) {
    return Answer(number,
                  absl::NotFoundError(absl::StrCat("rank ", command.fault.rank, " of ",
                                                   ToString(command.job), " has no process here")));
  }
  // First of all: what comes about may end the session.
  Answer(number, absl::OkStatus());
  Inject(found->first, found->second, command.fault);
}

void Machine::Run(uint64_t number, const FetchLogsCommand& command) {
  actions_.push_back(UploadLogs{number, command, store_});
}

void Machine::Run(uint64_t number, const TryPeerCommand& command) {
  actions_.push_back(TryPeer{number, coordinator_, command.word, command.peer});
}

}  // namespace phalanx::agent

// Assignments and the processes that serve them (machine.h).
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/agent/machine/machine.h"

namespace phalanx::agent {

void Machine::Apply(const ProcessStarted& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end()) return;
  ++counted_.rank_starts;
  if (found->second.keeps) {
    if (event.status.ok()) return;
    ++counted_.rank_ends["start_failed"];
    TellNoKeeper(found->second, event.status.message());
    processes_.erase(found);
    return AnswerStops();
  }
  const JobId job = found->second.job;
  const auto assigned = assignments_.find(job);
  const bool counts =
      assigned != assignments_.end() && assigned->second.command->epoch == found->second.epoch;
  if (!event.status.ok()) {
    ++counted_.rank_ends["start_failed"];
    const int32_t device = found->second.device;
    processes_.erase(found);
    EndWarming(event.process);
    if (counts && assigned->second.takes_over) {
      --assigned->second.starting;
      GoWithout(assigned->second, device, job::FailureKind::kRankExited, event.status);
      AnswerIfStarted(assigned->second);
    } else if (counts) {
      FailAssignment(job, event.status);
    }
    AnswerStops();
    return;
  }
  if (!counts) return;
  --assigned->second.starting;
  AnswerIfStarted(assigned->second);
}

void Machine::Apply(const RankHelloReceived& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end() || found->second.state != ProcessState::kStarting) return;
  Process& process = found->second;
  process.state = ProcessState::kIdle;
  process.kill_at = absl::InfiniteFuture();
  if (process.keeps) return RunKeeper(event.process, process);
  const auto assigned = assignments_.find(process.job);
  if (assigned != assignments_.end() &&
      !(process.warms && assigned->second.command->epoch <= process.warms_behind)) {
    RunEpochIn(event.process, process, assigned->second);
  }
  if (process.warms) WarmUpIn(event.process, process);
}

void Machine::Apply(const RankReported& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end()) return;
  Process& process = found->second;
  if (process.job == JobId{}) return;  // nobody asks any more
  if (event.kind == ReportKind::kPublished && event.epoch < process.epoch) {
    reports_.Add({process.job, event.epoch, process.rank, event.payload}, event.kind);
    return SendQueuedReports();
  }
  if (process.next == event.epoch) {  // on its way there
    reports_.Add({process.job, event.epoch, RankInNext(process), event.payload}, event.kind);
    return SendQueuedReports();
  }
  if (process.epoch != event.epoch) return;
  reports_.Add({process.job, process.epoch, process.rank, event.payload}, event.kind);
  SendQueuedReports();
  if (event.outcome == RankOutcome::kSucceeded) process.succeeded = true;
  if (event.outcome == RankOutcome::kFailed) StopEpochWith(process);
}

void Machine::Apply(const RankProgressed& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end() || found->second.epoch != event.epoch) return;
  Process& process = found->second;
  process.step = std::max(process.step, event.step);
  process.step_times.Reached(now_, event.step, event.took);
  process.work_seconds = event.work_seconds;
  process.equal_work = event.equal_work;
  process.work_seconds_per_gflop = event.work_seconds_per_gflop;
  process.like_work = event.like_work;
  // How long it may not run is known by now.
  if (process.hung_at < absl::InfiniteFuture()) process.hung_at = now_ + PatienceWith(process);
}

void Machine::Apply(const EpochStopped& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end() || found->second.epoch != event.epoch) return;
  Process& process = found->second;
  if (process.state != ProcessState::kStopping && !process.next.has_value()) return;
  if (process.state == ProcessState::kEnding || process.state == ProcessState::kDead) return;
  const std::optional<Epoch> next = std::exchange(process.next, std::nullopt);
  process.state = ProcessState::kIdle;
  process.kill_at = absl::InfiniteFuture();
  const auto assigned = assignments_.find(process.job);
  if (assigned == assignments_.end() || assigned->second.command->epoch <= process.epoch) return;
  if (next == assigned->second.command->epoch) {
    GoOver(event.process, process, assigned->second);
  } else {
    RunEpochIn(event.process, process, assigned->second);
  }
}

void Machine::Apply(const ChannelFailed& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end() || found->second.killed) return;
  Process& process = found->second;
  if (process.state == ProcessState::kDead) return;
  if (process.state != ProcessState::kEnding) {
    Log(absl::StrCat(ToString(process.job), " epoch=", process.epoch.value, " rank=", process.rank,
                     " channel failed: ", event.reason));
  }
  const Instant kill_at = now_ + options_.channel_grace;
  if (kill_at >= process.kill_at) return;
  process.kill_at = kill_at;
  if (process.state == ProcessState::kEnding) return;
  process.fault =
      absl::StrCat("its channel to the worker failed (", event.reason, ") and it did not end");
}

void Machine::Apply(const ProcessDied& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end()) return;
  Process& process = found->second;
  // What was told to end has ended, and why another was killed has been said.
  if (process.state == ProcessState::kEnding || process.state == ProcessState::kDead ||
      process.killed) {
    return;
  }
  Log(absl::StrCat(ToString(process.job), " epoch=", process.epoch.value, " rank=", process.rank,
                   " died; it is still to be reaped"));
  ReplaceLost(process);
  process.state = ProcessState::kDead;
  process.gone_at = now_;
  process.fault.clear();
  process.kill_at = now_ + options_.reap_timeout;
  process.hung_at = absl::InfiniteFuture();
  ExcuseStandstills();
  if (process.succeeded || process.warms || process.keeps || process.job == JobId{}) return;
  reports_.Add({process.job, process.epoch, process.rank, RankDeath{}}, ReportKind::kOther);
  SendQueuedReports();
  StopEpochWith(process);
}

void Machine::Apply(const ProcessExited& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end()) return;
  const Process process = found->second;
  processes_.erase(found);
  ++counted_.rank_ends[CauseOfEnd(process, event.exit_code, event.signal)];
  ExcuseStandstills();
  if (process.device != kNoDevice) {
    Instant& check_due = check_due_[static_cast<size_t>(process.device)];
    check_due = std::max(check_due, now_ + options_.check_delay);
  }
  const bool expected = process.state == ProcessState::kEnding;
  Log(absl::StrCat(ToString(process.job), " epoch=", process.epoch.value, " rank=", process.rank,
                   " exited code=", event.exit_code, " signal=", event.signal,
                   expected ? " expected" : ""));
  if (process.keeps && !expected && (event.exit_code != 0 || event.signal != 0)) {
    TellNoKeeper(process, absl::StrCat("its process ended with code ", event.exit_code, ", signal ",
                                       event.signal));
  }
  if (process.job != JobId{} && !process.warms && !process.keeps) {
    reports_.Add({process.job, process.epoch, process.rank,
                  RankExit{event.exit_code, event.signal, expected, event.log_tail}},
                 ReportKind::kOther);
  }
  if (expected) {
    const auto stopped = stopped_epoch_.find(process.job);
    if (stopped != stopped_epoch_.end()) reports_.Retire(process.job, stopped->second);
  }
  SendQueuedReports();
  ReplaceLost(process);
  if (!expected && !process.succeeded) StopEpochWith(process);
  StartProcesses();
  EndWarming(event.process);
  StartWarming();
  AnswerStops();
}

void Machine::ReplaceLost(const Process& process) {
  const auto assigned = assignments_.find(process.job);
  if (assigned == assignments_.end() || assigned->second.command->epoch <= process.epoch) return;
  // One that warms up is for the next epoch: in this one its rank has died.
  if (process.warms && assigned->second.command->epoch <= process.warms_behind) return;
  if (process.state != ProcessState::kStopping && process.state != ProcessState::kStarting) return;
  if (assigned->second.rank_of_device.contains(process.device) && LostDevice(process.device).ok())
    assigned->second.to_start.insert(process.device);
}

absl::Status Machine::CheckPlacement(const AssignCommand& command, bool takes_over,
                                     std::map<int32_t, int32_t>* ranks) const {
  int32_t rank = 0;
  bool placed = false;
  for (const NodeDevices& node : command.placement) {
    for (const int32_t device : node.devices) {
      const int32_t here = rank++;
      if (node.node != options_.node) continue;
      placed = true;
      if (command.without_work.contains(here)) continue;
      if (device < 0 || device >= options_.devices) {
        return absl::InvalidArgumentError(absl::StrCat("device ", device, " of node ",
                                                       options_.node, " does not exist; it has ",
                                                       options_.devices));
      }
      if (!takes_over) RETURN_IF_ERROR(LostDevice(device));
      if (!ranks->emplace(device, here).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("device ", device, " of node ", options_.node, " is placed twice"));
      }
      for (const auto& [number, process] : processes_) {
        if (process.device == device && process.job != command.job &&
            process.state != ProcessState::kEnding && process.state != ProcessState::kDead) {
          return absl::FailedPreconditionError(absl::StrCat(
              "device ", device, " of node ", options_.node, " runs ", ToString(process.job)));
        }
      }
    }
  }
  if (!placed) {
    return absl::InvalidArgumentError(absl::StrCat("no rank is placed on node ", options_.node));
  }
  return absl::OkStatus();
}

// The data is there: live processes of the job change over, the others are started or ended.
void Machine::Adopt(JobId job, Assignment& assignment) {
  for (auto& [number, process] : processes_) {
    if (process.job != job || process.state == ProcessState::kEnding ||
        process.state == ProcessState::kDead) {
      continue;
    }
    if (process.keeps && process.epoch == assignment.command->epoch) continue;
    if (assignment.to_start.erase(process.device) == 0) {
      End(number, process, options_.shutdown_grace, "a newer epoch does not need this rank");
      continue;
    }
    switch (process.state) {
      case ProcessState::kRunning:
        if (assignment.command->beside) {
          RunBeside(number, process, assignment);
        } else {
          process.next.reset();
          StopEpochIn(number, process);
        }
        break;
      case ProcessState::kIdle:
        RunEpochIn(number, process, assignment);
        break;
      default:  // kStarting, kStopping: its next answer finds the new assignment
        break;
    }
  }
  StartProcesses();
  AnswerIfStarted(assignment);
}

// Processes that are to say that they are quiet, and do not know of the epoch: it was over before
// they were there, or had left the one before.
void Machine::TellNeverRan(const Assignment& assignment) {
  const AssignCommand& command = *assignment.command;
  for (const auto& [device, rank] : assignment.rank_of_device) {
    const bool runs =
        std::any_of(processes_.begin(), processes_.end(), [&, device = device](const auto& entry) {
          const Process& process = entry.second;
          return process.job == command.job && process.device == device &&
                 process.epoch == command.epoch && process.state != ProcessState::kStarting &&
                 process.state != ProcessState::kEnding;
        });
    if (!runs) reports_.Add({command.job, command.epoch, rank, RankNeverRan{}}, ReportKind::kOther);
  }
  SendQueuedReports();
}

void Machine::StartProcesses() {
  if (draining_) return;
  for (auto& [job, assignment] : assignments_) {
    if (!assignment.data.has_value()) continue;
    for (auto device = assignment.to_start.begin(); device != assignment.to_start.end();) {
      const bool taken = IsChecked(*device) ||
                         std::any_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
                           return entry.second.device == *device;
                         });
      if (taken) {
        ++device;
        continue;
      }
      last_process_ = ProcessNumber{last_process_.value + 1};
      const int32_t rank = assignment.rank_of_device.at(*device);
      processes_[last_process_] = {
          .job = job,
          .device = *device,
          .epoch = assignment.command->epoch,
          .rank = rank,
          .kill_at = now_ + options_.hello_timeout,
          .fault = absl::StrCat("it said nothing within ",
                                absl::FormatDuration(options_.hello_timeout), " of its start")};
      actions_.push_back(StartProcess{last_process_, job, assignment.command->epoch, rank, *device,
                                      store_, assignment.command});
      ++assignment.starting;
      device = assignment.to_start.erase(device);
    }
  }
}

void Machine::StopEpochIn(ProcessNumber number, Process& process) {
  process.state = ProcessState::kStopping;
  process.kill_at = now_ + options_.stop_epoch_timeout;
  process.fault = absl::StrCat("it did not leave its epoch within ",
                               absl::FormatDuration(options_.stop_epoch_timeout));
  actions_.push_back(SendStopEpoch{number, process.epoch});
}

void Machine::StopEpochWith(const Process& process) {
  for (auto& [number, other] : processes_) {
    if (&other != &process && other.job == process.job && other.epoch == process.epoch &&
        other.state == ProcessState::kRunning && !other.succeeded) {
      StopEpochIn(number, other);
    }
  }
}

void Machine::RunEpochIn(ProcessNumber number, Process& process, const Assignment& assignment) {
  const auto place = assignment.rank_of_device.find(process.device);
  if (!assignment.data.has_value() || place == assignment.rank_of_device.end()) return;
  if (std::exchange(process.warms, false)) {
    process.kill_at = absl::InfiniteFuture();
    EndWarming(number);
  }
  actions_.push_back(SendRunEpoch{number, assignment.command, place->second, process.device,
                                  assignment.data->index_path,
                                  assignment.data->validation_index_path, store_});
  for (const std::string& payload : assignment.rendezvous) {
    actions_.push_back(SendRendezvous{number, payload});
  }
  GoOver(number, process, assignment);
}

void Machine::AnswerAssign(Assignment& assignment, const absl::Status& status) {
  for (const uint64_t number : std::exchange(assignment.to_answer, {})) Answer(number, status);
}

void Machine::AnswerIfStarted(Assignment& assignment) {
  if (assignment.data.has_value() && assignment.to_start.empty() && assignment.starting == 0)
    AnswerAssign(assignment, absl::OkStatus());
}

void Machine::GoWithout(Assignment& assignment, int32_t device, job::FailureKind kind,
                        const absl::Status& why) {
  const AssignCommand& command = *assignment.command;
  const auto rank = assignment.rank_of_device.find(device);
  if (rank == assignment.rank_of_device.end()) return;
  Log(absl::StrCat(ToString(command.job), " epoch=", command.epoch.value, " rank=", rank->second,
                   " cannot run here: ", OneLine(why)));
  reports_.Add({command.job, command.epoch, rank->second,
                RankFault{absl::StrCat("it cannot run: ", why.message()), kind}},
               ReportKind::kOther);
  assignment.rank_of_device.erase(rank);
  assignment.to_start.erase(device);
  SendQueuedReports();
}

// The epoch cannot run here: the coordinator is told and nothing of it stays.
void Machine::FailAssignment(JobId job, const absl::Status& status) {
  const auto assigned = assignments_.find(job);
  if (assigned == assignments_.end()) return;
  Log(absl::StrCat(ToString(job), " epoch=", assigned->second.command->epoch.value,
                   " cannot run here: ", OneLine(status)));
  AnswerAssign(assigned->second, status);
  assignments_.erase(assigned);
  EndAll(job, options_.shutdown_grace, status.message());
}

void Machine::End(ProcessNumber number, Process& process, absl::Duration grace,
                  absl::string_view reason) {
  if (process.killed || process.state == ProcessState::kDead) return;
  const bool told = std::exchange(process.state, ProcessState::kEnding) == ProcessState::kEnding;
  process.kill_at = told ? std::min(process.kill_at, now_ + grace) : now_ + grace;
  process.hung_at = absl::InfiniteFuture();
  process.fault.clear();
  if (grace <= absl::ZeroDuration()) return Kill(number, process);
  if (told) return;
  process.terminate_at = now_ + std::min(options_.quit_grace, grace / 2);
  actions_.push_back(SendQuit{number, std::string(reason)});
}

void Machine::EndAll(JobId job, absl::Duration grace, absl::string_view reason) {
  for (auto& [number, process] : processes_) {
    if (process.job == job) End(number, process, grace, reason);
  }
}

// Who sees no more than the signal would take it for one from outside.
void Machine::Kill(ProcessNumber number, Process& process) {
  process.killed = true;
  process.gone_at = std::min(process.gone_at, now_);
  if (process.state != ProcessState::kDead) ExcuseStandstills();  // those have been excused
  if (!process.fault.empty() && process.job != JobId{} && !process.warms) {
    const std::string next =
        process.fault_next.empty() ? "" : absl::StrCat("\nto do: ", process.fault_next);
    reports_.Add(
        {process.job, process.epoch, process.rank,
         RankFault{absl::StrCat(process.fault, ": its worker ended it", next), process.fault_kind}},
        ReportKind::kOther);
    SendQueuedReports();
    StopEpochWith(process);
  }
  actions_.push_back(KillProcess{number});
}

void Machine::KeepProcesses() {
  for (auto& [number, process] : processes_) {
    if (process.killed) continue;
    if (judged_ >= process.hung_at) {
      process.fault =
          process.stands_still
              ? "its training hangs: it works, for longer than any step took, at one and the same"
              : "it has not run for long: somebody has stopped it, or nobody lets it run";
      process.fault_kind = job::FailureKind::kRankHung;
      Kill(number, process);
    } else if (judged_ >= process.kill_at) {
      Kill(number, process);
    } else if (judged_ >= process.terminate_at) {
      process.terminate_at = absl::InfiniteFuture();
      actions_.push_back(TerminateProcess{number});
    }
  }
}

void Machine::AnswerStops() {
  std::vector<Stopping> waiting;
  for (const Stopping& stop : std::exchange(stops_, {})) {
    if (HasProcess(stop.job)) {
      waiting.push_back(stop);
    } else {
      actions_.push_back(FreeHostMemory{stop.job});
      Answer(stop.command_number, absl::OkStatus());
    }
  }
  stops_ = std::move(waiting);
}

bool Machine::HasProcess(JobId job) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [job](const auto& entry) { return entry.second.job == job; });
}

bool Machine::MayEndWithCheckpoint(const Process& process) const {
  const auto assigned = assignments_.find(process.job);
  return process.state == ProcessState::kRunning && !process.keeps &&
         assigned != assignments_.end() && assigned->second.command->writes_checkpoints;
}

std::vector<RunningAssignment> Machine::Running() const {
  std::set<std::pair<JobId, Epoch>> running;
  for (const auto& [number, process] : processes_) {
    if (process.state == ProcessState::kEnding || process.state == ProcessState::kDead) continue;
    if (process.keeps) continue;
    // One that is to leave its epoch for another is no less there for that one.
    const auto assigned = assignments_.find(process.job);
    const bool goes_over =
        assigned != assignments_.end() && assigned->second.rank_of_device.contains(process.device);
    if (process.warms && !goes_over) continue;
    running.emplace(process.job, goes_over ? assigned->second.command->epoch : process.epoch);
  }
  // An assignment whose data is still being read has no process yet and is no less taken on, nor is
  // one for which processes warm up, or are about to: nobody else knows of them.
  for (const auto& [job, assignment] : assignments_) {
    if (!assignment.data.has_value() || !assignment.to_start.empty() || MakesReady(job)) {
      running.emplace(job, assignment.command->epoch);
    }
  }
  std::vector<RunningAssignment> list;
  for (const auto& [job, epoch] : running) list.push_back({job, epoch});
  return list;
}

std::vector<Progress> Machine::ProgressOf() const {
  std::map<std::pair<JobId, Epoch>, Progress> of_job;
  for (const auto& [number, process] : processes_) {
    if (process.state != ProcessState::kRunning || process.keeps) continue;
    const auto [entry, added] =
        of_job.emplace(std::pair(process.job, process.epoch),
                       Progress{process.job, process.epoch, process.step, {}});
    Progress& progress = entry->second;
    if (!added) progress.step = std::min(progress.step, process.step);
    if (process.work_seconds > 0 && process.equal_work != 0)
      progress.work.push_back({process.rank, process.work_seconds, process.equal_work,
                               process.work_seconds_per_gflop, process.like_work});
  }
  std::vector<Progress> list;
  for (auto& [key, progress] : of_job) {
    progress.waits = WaitOf(key.first, key.second);
    list.push_back(std::move(progress));
  }
  return list;
}

}  // namespace phalanx::agent

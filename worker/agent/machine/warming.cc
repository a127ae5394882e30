// Processes that make ready beside training (machine.h): a device that its job lost gets a process
// before the coordinator plans an epoch that has the device again.
//
// The coordinator asks whether the node has the job's data (PrepareData) before it counts on lost
// devices again. While the job trains on, the answer waits until each of them has a process that
// has warmed up, or that has failed to: then the epoch finds one that is cold, or starts it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/machine/machine.h"

namespace phalanx::agent {

void Machine::RememberWork(const Assignment& assignment) {
  std::map<int32_t, LastWork>& last = last_work_[assignment.command->job];
  // What its job has given back may be another's by now.
  std::set<int32_t> has;
  for (const NodeDevices& node : assignment.command->placement) {
    if (node.node == options_.node) has.insert(node.devices.begin(), node.devices.end());
  }
  std::erase_if(last, [&has](const auto& work) { return !has.contains(work.first); });
  for (const auto& [device, rank] : assignment.rank_of_device)
    last[device] = {assignment.command, rank};
}

const Machine::LastWork* Machine::LastWorkOn(JobId job, int32_t device) const {
  const auto last = last_work_.find(job);
  if (last == last_work_.end()) return nullptr;
  const auto work = last->second.find(device);
  return work == last->second.end() ? nullptr : &work->second;
}

bool Machine::HasLiveProcess(JobId job, int32_t device) const {
  return std::any_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
    const Process& process = entry.second;
    return process.job == job && process.device == device &&
           process.state != ProcessState::kEnding && process.state != ProcessState::kDead;
  });
}

Epoch Machine::EpochOfProcessesOn(JobId job, int32_t device) const {
  const auto assigned = assignments_.find(job);
  // Its data is still to come, or its process to be started: the one that warms up runs it.
  if (assigned != assignments_.end() && assigned->second.to_start.contains(device))
    return Epoch{assigned->second.command->epoch.value - 1};
  const auto highest = highest_epoch_.find(job);
  return highest == highest_epoch_.end() ? Epoch{} : highest->second;
}

bool Machine::MakesReady(JobId job) const {
  return warmings_.contains(job) ||
         std::any_of(data_requests_.begin(), data_requests_.end(),
                     [job](const auto& entry) { return entry.second.job == job; }) ||
         std::any_of(processes_.begin(), processes_.end(), [job](const auto& entry) {
           const Process& process = entry.second;
           return process.job == job && process.warms && process.state != ProcessState::kEnding &&
                  process.state != ProcessState::kDead;
         });
}

bool Machine::WarmsUpFor(JobId job, uint64_t command_number,
                         const std::shared_ptr<const DataOutcome>& data) {
  const auto assigned = assignments_.find(job);
  if (draining_ || assigned == assignments_.end() || !assigned->second.command->goes_on)
    return false;
  std::set<int32_t> cold;
  for (const auto& [device, work] : last_work_[job]) {
    if (!HasLiveProcess(job, device) && LostDevice(device).ok()) cold.insert(device);
  }
  const auto present = warmings_.find(job);
  if (cold.empty() && (present == warmings_.end() || present->second.under_way.empty()))
    return false;
  Warming& warming = warmings_[job];
  warming.to_answer.push_back({command_number, coordinator_.value});
  warming.data = data;
  warming.to_start.insert(cold.begin(), cold.end());
  return true;
}

void Machine::StartWarming() {
  if (draining_) return;
  for (auto& [job, warming] : warmings_) {
    for (auto device = warming.to_start.begin(); device != warming.to_start.end();) {
      const bool taken = IsChecked(*device) ||
                         std::any_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
                           return entry.second.device == *device;
                         });
      const LastWork* work = LastWorkOn(job, *device);
      // A newer epoch was quicker, or does not have the device, or it has failed meanwhile.
      if (work == nullptr || HasLiveProcess(job, *device) || !LostDevice(*device).ok()) {
        device = warming.to_start.erase(device);
        continue;
      }
      if (taken) {  // by one that is still to be reaped, or by a check
        ++device;
        continue;
      }
      const Epoch behind = EpochOfProcessesOn(job, *device);
      last_process_ = ProcessNumber{last_process_.value + 1};
      processes_[last_process_] = {
          .job = job,
          .device = *device,
          .rank = work->rank,
          .kill_at = now_ + options_.hello_timeout,
          .fault = absl::StrCat("it said nothing within ",
                                absl::FormatDuration(options_.hello_timeout), " of its start"),
          .warms = true,
          .warms_behind = behind};
      warming.under_way.insert(last_process_);
      actions_.push_back(StartProcess{last_process_, job, highest_epoch_[job], work->rank, *device,
                                      store_, work->command});
      device = warming.to_start.erase(device);
    }
  }
  AnswerWarmed();
}

void Machine::WarmUpIn(ProcessNumber number, Process& process) {
  const auto warming = warmings_.find(process.job);
  if (warming == warmings_.end() || !warming->second.under_way.contains(number)) return;
  const LastWork* work = LastWorkOn(process.job, process.device);
  if (work == nullptr) return;  // the assignment without its device ends it once it has its data
  process.kill_at = now_ + options_.warm_up_timeout;
  actions_.push_back(SendWarmUp{number, work->command, work->rank, process.device,
                                warming->second.data->index_path,
                                warming->second.data->validation_index_path, store_});
}

void Machine::Apply(const RankWarmed& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end() || !found->second.warms) return;
  found->second.kill_at = absl::InfiniteFuture();
  Log(absl::StrCat(ToString(found->second.job), " rank=", found->second.rank,
                   " has a process again, and it is warm"));
  EndWarming(event.process);
}

void Machine::EndWarming(ProcessNumber number) {
  for (auto& [job, warming] : warmings_) warming.under_way.erase(number);
  AnswerWarmed();
}

void Machine::AnswerWarmed() {
  for (auto warming = warmings_.begin(); warming != warmings_.end();) {
    if (!warming->second.to_start.empty() || !warming->second.under_way.empty()) {
      ++warming;
      continue;
    }
    const Warming done = std::move(warming->second);
    warming = warmings_.erase(warming);
    for (const auto& [number, coordinator] : done.to_answer) {
      if (coordinator == coordinator_.value) Answer(number, absl::OkStatus(), done.data);
    }
  }
}

void Machine::CallOffWarming(JobId job) {
  last_work_.erase(job);
  const auto found = warmings_.find(job);
  if (found == warmings_.end()) return;
  const Warming off = std::move(found->second);
  warmings_.erase(found);
  for (const auto& [number, coordinator] : off.to_answer) {
    if (coordinator == coordinator_.value) Answer(number, absl::AbortedError("stopped"));
  }
}

}  // namespace phalanx::agent

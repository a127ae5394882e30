// Processes that go from one epoch to the next by themselves (machine.h): they have been given
// both, and leave the first once all ranks of the second are connected.
#include "worker/agent/machine/machine.h"

namespace phalanx::agent {

int32_t Machine::RankInNext(const Process& process) const {
  const auto assigned = assignments_.find(process.job);
  if (assigned == assignments_.end()) return process.rank;
  const auto place = assigned->second.rank_of_device.find(process.device);
  return place == assigned->second.rank_of_device.end() ? process.rank : place->second;
}

bool Machine::IsIn(const Process& process, JobId job, Epoch epoch) {
  if (process.job != job) return false;
  const bool on_its_way = process.next == epoch && (process.state == ProcessState::kRunning ||
                                                    process.state == ProcessState::kStopping);
  return on_its_way || (process.state == ProcessState::kRunning && process.epoch == epoch);
}

void Machine::RunBeside(ProcessNumber number, Process& process, const Assignment& assignment) {
  process.next = assignment.command->epoch;
  actions_.push_back(SendRunEpoch{number, assignment.command, RankInNext(process), process.device,
                                  assignment.data->index_path,
                                  assignment.data->validation_index_path, store_,
                                  /*beside=*/true});
  for (const std::string& payload : assignment.rendezvous) {
    actions_.push_back(SendRendezvous{number, payload});
  }
}

void Machine::GoOver(ProcessNumber number, Process& process, const Assignment& assignment) {
  NoteWait(process, false, now_);
  process.work_seconds = 0;
  process.state = ProcessState::kRunning;
  process.rank = RankInNext(process);
  process.epoch = assignment.command->epoch;
  process.step = 0;
  process.succeeded = false;
  process.step_times.BeginEpoch();
  if (!assignment.begin.empty()) actions_.push_back(SendBeginEpoch{number, assignment.begin});
}

}  // namespace phalanx::agent

// core/examine/examination.h: what is wrong with a machine for jobs, in words.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/examine/machine_facts.h"
#include "core/job/node_examination.h"

namespace phalanx::examine {

// In a fixed order: driver, nccl, shared memory, limits, clock, ports, host name, and "folder" of
// each folder.
std::vector<job::Finding> ExamineMachine(const MachineFacts& facts);
// What a worker has been told.
struct WorkerFacts {
  int32_t gpus = 0;  // that it offers
  // Those that its environment leaves it (CUDA_VISIBLE_DEVICES); nullopt: all of the machine.
  std::optional<int32_t> visible_gpus = std::nullopt;
  bool has_address = false;  // that other nodes reach, whatever the machine's name gives
};
// The same for others than whoever sits at the machine: all folders are one finding, "folders".
// Where folders have marks, "same folders" has them, "/srv is 0123456789abcdef on the network;
// ...". What this worker does not use is skipped, and so is a folder that is not for it to write
// in: jobs may have some below it.
std::vector<job::Finding> ExamineNode(const MachineFacts& facts, const WorkerFacts& worker);

}  // namespace phalanx::examine

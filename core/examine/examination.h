// core/examine/examination.h: what is wrong with a machine for jobs, in words.
#pragma once

#include <vector>

#include "core/examine/machine_facts.h"
#include "core/job/node_examination.h"

namespace phalanx::examine {

// In a fixed order: driver, nccl, shared memory, limits, clock, ports, host name, and "folder" of
// each folder.
std::vector<job::Finding> ExamineMachine(const MachineFacts& facts);
// The same for others than whoever sits at the machine: all folders are one finding, "folders".
std::vector<job::Finding> ExamineNode(const MachineFacts& facts);

}  // namespace phalanx::examine

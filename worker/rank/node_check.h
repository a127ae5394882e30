// worker/rank/node_check.h: what `phalanx-rank --check-devices` does: checks devices that no rank
// uses, one after the other.
//
// Of each device: memory is written with two patterns and read back; products of matrices of small
// integers are compared with the ones that plain integer arithmetic has; what is copied to and from
// it, and on GPUs from the device checked before it, is timed. Then loopback TCP of the node. A
// few MiB and tenths of a second a CPU slot, 256 MiB and a few seconds a GPU; nothing of a device
// is left in use. The daemon ends a process that takes longer than it may.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/job/node_check.h"

namespace phalanx::rank {

struct NodeCheckOptions {
  std::string device_kind;  // "cpu" or "gpu"
  std::vector<int32_t> devices;
  // For tests: a file of lines "DEVICE memory", "DEVICE arithmetic" and "DEVICE copy", which spoil
  // what the device gives back or is given by its peer, "DEVICE error" and "DEVICE hang"; empty, or
  // one that is not there: none.
  std::string faults;
};

// Of one device; `peer`: one checked before it, -1: none. Of the verdict kNone where nobody can
// say, such as of a device without free memory, with the reason. Does not throw.
job::DeviceCheck CheckDevice(const NodeCheckOptions& options, int32_t device, int32_t peer);

// Of the exception that is being handled, with its words; only inside a catch clause. The device is
// to blame for what its driver or a kernel says alone: a lack of memory or of threads is the
// node's.
std::pair<job::CheckVerdict, std::string> VerdictOfCurrentException(bool gpu);

// Prints of each device, as soon as it is known, and then of the loopback interface a NodeCheck as
// a line of JSON. Says nothing of what comes behind a GPU that failed: an error of CUDA may stay
// with the process, and would be found of the others too.
void CheckNode(const NodeCheckOptions& options, std::ostream& out);

// KIND DEVICE,DEVICE... [FAULTS]. Returns the exit code.
int CheckNodeMain(const std::vector<std::string>& arguments);

}  // namespace phalanx::rank

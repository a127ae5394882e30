// client/node_view.h: one node as people see it.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

// "Ready, cordoned by ops: new power supply", "Ready, reserved: spares of everybody".
std::string NodeState(const v1::NodeStatus& node);
// Devices that no job has and that did not fail.
int64_t FreeDevices(const v1::NodeStatus& node);

// "12.0 GiB/80.0 GiB": bytes in use (below 0: unknown) of so many (0: unknown); "-" where neither
// says anything.
std::string UsedMemoryText(int64_t used, int64_t bytes);

// The whole of it: fields, then of each device who has it and what its last check found.
void DescribeNode(const v1::NodeStatus& node, absl::Time now, std::ostream& out);

}  // namespace phalanx::client

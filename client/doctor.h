// client/doctor.h: `phalanx doctor`: whether a machine, and the cluster that it belongs to, can do
// what jobs will ask of them, in words.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/connection.h"
#include "client/format.h"
#include "core/job/node_examination.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

// What a coordinator says of its nodes, but for their machines (doctor_nodes.h), of which it knows
// since `now` on this machine's clock. `version`: this client's.
std::vector<job::Finding> ExamineCluster(const std::vector<v1::NodeStatus>& nodes,
                                         const std::string& version, absl::Time now);

struct DoctorOptions {
  std::string folder;   // that jobs share; empty: not looked at
  bool cluster = true;  // ask the coordinator too
  std::string version;
  Format format = Format::kTable;
};
// Returns kSuccess, or kFailure if there is a problem. A coordinator that does not answer is one
// where `cluster` is set.
int Doctor(Connection& connection, const DoctorOptions& options, Io& io);

}  // namespace phalanx::client

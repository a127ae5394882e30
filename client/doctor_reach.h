// client/doctor_reach.h: whether nodes of a cluster reach each other, for people.
//
// The coordinator has pairs of nodes try it, as ranks of a job on both would. Jobs are of nodes of
// one kind, so each node tries the next one of its kind, and the last one the first.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/connection.h"
#include "core/job/node_examination.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

struct NodePair {
  std::string from, to;
  friend bool operator==(const NodePair&, const NodePair&) = default;
};
// Of nodes that are ready, in their order: as many as there are of a kind with two or more. Pure.
std::vector<NodePair> RingsOf(const std::vector<v1::NodeStatus>& nodes);

struct ReachOptions {
  // Of the pairs so many are tried, spread evenly over them, one behind the other, while there is
  // time: no further one begins behind that.
  size_t pairs_max = 32;
  absl::Duration time_max = absl::Seconds(20);
};
// One finding, "node reach": a problem if some node does not reach the next one. Pairs of which
// nobody can tell are counted, and are no trouble.
job::Finding ExamineReach(Connection& connection, const std::vector<v1::NodeStatus>& nodes,
                          const ReachOptions& options = {});

}  // namespace phalanx::client

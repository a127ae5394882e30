// client/doctor_nodes.h: what the nodes of a cluster found of their own machines, for people.
//
// Each worker examines its machine and tells its coordinator. A worker that says nothing, as those
// of the release before, makes its node unknown, which is no trouble. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/job/node_examination.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

// Clocks that are less apart are not told of: messages are late by themselves.
inline constexpr absl::Duration kClockSkewMax = absl::Seconds(5);

// Of one node, in its order, its clock compared with the coordinator's; none: it is unknown.
std::vector<job::Finding> FindingsOf(const v1::NodeStatus& node);

// One finding a check, "node limits", however many nodes: the worst that any has, with the names of
// the first few. Of no nodes there are none.
std::vector<job::Finding> ExamineNodes(const std::vector<v1::NodeStatus>& nodes);

// "a, b and 3 more".
std::string NamesText(const std::vector<std::string>& names, size_t shown_max,
                      absl::string_view between = ", ");

}  // namespace phalanx::client

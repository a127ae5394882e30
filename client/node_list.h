// client/node_list.h: nodes, as a coordinator lists them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

// All of them, by name; with what their workers found of their machines, if `examinations`. They
// are asked for in pages, however many there are, each with the connection's timeout. Errors: those
// of Connection::Call.
// `store_fault`, if any: gets why the coordinator accepts nothing now; empty: it does.
absl::StatusOr<std::vector<v1::NodeStatus>> ListNodes(Connection& connection, bool examinations,
                                                      std::string* store_fault = nullptr);

// The one of that name, with what its worker found of its machine; nullopt: there is none. Errors:
// those of Connection::Call.
absl::StatusOr<std::optional<v1::NodeStatus>> FindNode(Connection& connection,
                                                       const std::string& name);

}  // namespace phalanx::client

#include "client/node_list.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::client {
namespace {

constexpr int32_t kNodesPageSize = 1000;

}  // namespace

absl::StatusOr<std::vector<v1::NodeStatus>> ListNodes(Connection& connection, bool examinations,
                                                      std::string* store_fault) {
  v1::ListNodesRequest request;
  request.set_examinations(examinations);
  request.set_page_size(kNodesPageSize);
  std::vector<v1::NodeStatus> nodes;
  while (true) {
    v1::ListNodesResponse response;
    RETURN_IF_ERROR(connection.Call(&v1::JobService::Stub::ListNodes, request, &response));
    if (store_fault != nullptr) *store_fault = response.store_fault();
    // Where a coordinator of the release before leads from one page to the next, it answers with
    // all nodes.
    const std::string last = nodes.empty() ? "" : nodes.back().name();
    for (v1::NodeStatus& node : *response.mutable_nodes()) {
      if (request.page_token().empty() || node.name() > last) nodes.push_back(std::move(node));
    }
    if (response.next_page_token().empty()) return nodes;
    // Each page has nodes, and its token is the name of its last one.
    const bool adds = !nodes.empty() && nodes.back().name() != last;
    if (!adds || response.next_page_token() <= request.page_token()) {
      return absl::DataLossError(absl::StrCat(
          "the coordinator's pages of nodes do not go on after ", nodes.size(), " nodes"));
    }
    request.set_page_token(response.next_page_token());
  }
}

absl::StatusOr<std::optional<v1::NodeStatus>> FindNode(Connection& connection,
                                                       const std::string& name) {
  v1::ListNodesRequest request;
  request.set_examinations(true);
  request.set_node(name);
  v1::ListNodesResponse response;
  RETURN_IF_ERROR(connection.Call(&v1::JobService::Stub::ListNodes, request, &response));
  // A coordinator of the release before answers with all nodes.
  for (v1::NodeStatus& node : *response.mutable_nodes()) {
    if (node.name() == name) return std::move(node);
  }
  return std::nullopt;
}

}  // namespace phalanx::client

#include "coordinator/machine/too_few.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/schema.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kValuesShown = 4;

std::string LabelText(const std::string& key, const std::string& value) {
  return absl::StrCat(key, "=", value);
}

bool HasLabel(const Node& node, const std::string& key, const std::string& value) {
  const auto label = node.labels.find(key);
  return label != node.labels.end() && label->second == value;
}

// What there is instead of a label that no node has.
std::string Others(const std::vector<const Node*>& nodes, const std::string& key) {
  std::set<std::string> values;
  for (const Node* node : nodes) {
    const auto label = node->labels.find(key);
    if (label != node->labels.end()) values.insert(LabelText(key, label->second));
  }
  if (values.empty()) return "";
  const bool all = values.size() <= kValuesShown;
  while (values.size() > kValuesShown) values.erase(std::prev(values.end()));
  return absl::StrCat("; there ", all && values.size() == 1 ? "is " : "are ",
                      absl::StrJoin(values, ", "), all ? "" : ", and more");
}

// `nodes`: connected ones of the kind, of which none has all labels.
std::string WhyNoneMatches(const std::vector<const Node*>& nodes, const JobRequest& request) {
  const std::string kind(job::DeviceNames()[static_cast<size_t>(request.device_kind)]);
  if (nodes.empty()) return absl::StrCat("no connected node has ", kind, " devices");
  const std::string none = absl::StrCat("no connected node with ", kind, " devices has ");
  for (const auto& [key, value] : request.node_selector) {
    const bool there = std::any_of(
        nodes.begin(), nodes.end(),
        [&, &key = key, &value = value](const Node* node) { return HasLabel(*node, key, value); });
    if (!there) return absl::StrCat(none, "the label ", LabelText(key, value), Others(nodes, key));
  }
  return absl::StrCat(none, request.node_selector.size() == 2 ? "both " : "all of ",
                      absl::StrJoin(request.node_selector, ", ", absl::PairFormatter("=")));
}

}  // namespace

std::string WhyTooFew(const NodeTable& nodes, const JobRequest& request) {
  std::vector<const Node*> of_kind;
  int64_t all = 0, largest = 0;
  bool matches = false;
  for (const auto& [name, node] : nodes) {
    if (node.device_kind != request.device_kind) continue;
    if (node.connected()) of_kind.push_back(&node);
    if (!Matches(node, request)) continue;
    matches = matches || node.connected();
    const int64_t devices = CapacityOf(node);
    all += devices;
    largest = std::max(largest, devices);
  }
  if (all > 0) {
    return absl::StrCat("all nodes that match have fewer: ", all, " in all, ", largest,
                        " on the largest");
  }
  return matches ? "of the connected nodes that match none takes jobs"
                 : WhyNoneMatches(of_kind, request);
}

}  // namespace phalanx::coordinator

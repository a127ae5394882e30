#include "coordinator/machine/node_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/terminal_text.h"
#include "core/job/devices.h"

namespace phalanx::coordinator {
namespace {

int64_t HostMemoryLeft(const Node& node, JobId job) {
  if (node.host_memory == 0) return 0;
  int64_t left = node.host_memory;
  for (const auto& [other, bytes] : node.charged) {
    if (other != job) left -= std::min(left, bytes);
  }
  return std::max<int64_t>(left, 1);
}

}  // namespace

absl::Status NoSuchNode(const NodeName& name) {
  constexpr size_t kBytesShown = 128;
  return absl::NotFoundError(absl::StrCat("there is no node \"",
                                          LineText(name.substr(0, kBytesShown)),
                                          "\"; phalanx nodes lists those there are"));
}

std::string ToString(const NodeMark& mark) {
  return absl::StrCat(mark.drains ? "drained" : "cordoned",
                      mark.by.empty() ? "" : absl::StrCat(" by ", mark.by), ": ", mark.reason);
}

std::string ToString(const ReserveMark& reserve) {
  return absl::StrCat("reserved", reserve.by.empty() ? "" : absl::StrCat(" by ", reserve.by), ": ",
                      reserve.reason);
}

bool Node::HasFailed(int32_t device) const {
  return failed_devices.contains(device) || failed_checks.contains(device);
}

void Node::NoteLeftovers(JobId job, Epoch epoch) {
  Epoch& last = leftovers[job];
  last = std::max(last, epoch);
}

bool Node::EndLeftovers(JobId job, Epoch epoch) {
  const auto left = leftovers.find(job);
  if (left == leftovers.end() || epoch < left->second) return false;
  leftovers.erase(left);
  return leftovers.empty();
}

bool Node::IsOnItsWay(JobId job, Epoch epoch, uint64_t carried_out) const {
  return std::any_of(outstanding.begin(), outstanding.end(), [&](const Outstanding& order) {
    const auto* assign = std::get_if<Assign>(&order.command);
    return assign != nullptr && assign->job == job && assign->epoch == epoch &&
           (order.number == 0 || order.number > carried_out);
  });
}

bool Node::IsFree(int32_t device) const {
  return leftovers.empty() && device_jobs[static_cast<size_t>(device)] == JobId{} &&
         !HasFailed(device);
}

int32_t Node::FreeDevices() const { return leftovers.empty() ? UnheldDevices() : 0; }

int32_t Node::UnheldDevices() const {
  int32_t count = 0;
  for (size_t i = 0; i < device_jobs.size(); ++i)
    count += device_jobs[i] == JobId{} && !HasFailed(static_cast<int32_t>(i)) ? 1 : 0;
  return count;
}

bool Node::Idle() const {
  return std::count(device_jobs.begin(), device_jobs.end(), JobId{}) ==
         static_cast<std::ptrdiff_t>(device_jobs.size());
}

NodeView Node::View() const {
  // Of a node that has not spoken to this coordinator how many devices it has is not known.
  std::vector<int32_t> failed;
  std::set_union(failed_devices.begin(), failed_devices.end(), failed_checks.begin(),
                 failed_checks.end(), std::back_inserter(failed));
  return {.name = name,
          .connected = connected(),
          .suspect = connected() && suspect,
          .refused = refused,
          .unfit = unfit,
          .draining = draining,
          .device_kind = device_kind,
          .device_jobs = device_jobs,
          .device_memory = device_memory,
          .device_names = device_names,
          .host_memory = host_memory,
          .failed_devices = std::move(failed),
          .check = check,
          .examination = examination,
          .last_heartbeat = last_heard,
          .labels = labels,
          .version = version,
          .mark = shown_mark,
          .reserve = shown_reserve};
}

plan::MemoryLimits LimitsOf(const NodeTable& nodes, const Placement& placement, JobId job) {
  plan::MemoryLimits limits;
  for (const NodeDevices& entry : placement) {
    const auto node = nodes.find(entry.node);
    limits.nodes.push_back(node == nodes.end() ? 0 : HostMemoryLeft(node->second, job));
    for (const int32_t device : entry.devices) {
      const auto index = static_cast<size_t>(device);
      const bool known = node != nodes.end() && index < node->second.device_memory.size();
      limits.devices.push_back(known ? node->second.device_memory[index] : 0);
    }
  }
  return limits;
}

std::string FailureDomainOf(const Node& node) {
  const auto label = node.labels.find(job::kFailureDomainLabel);
  return label == node.labels.end() ? "" : label->second;
}

bool Matches(const Node& node, const JobRequest& request) {
  if (node.device_kind != request.device_kind) return false;
  return std::all_of(request.node_selector.begin(), request.node_selector.end(),
                     [&node](const auto& wanted) {
                       const auto label = node.labels.find(wanted.first);
                       return label != node.labels.end() && label->second == wanted.second;
                     });
}

bool CarriesOut(const Node& node, const plan::Layout& layout) {
  if (node.derivation < layout.derivation) return false;
  return node.derivation >= plan::kDerivationOfDomains ||
         std::all_of(layout.nodes.begin(), layout.nodes.end(),
                     [](const NodeDevices& entry) { return entry.domain.empty(); });
}

int32_t DerivationFor(const NodeTable& nodes, const Placement& placement) {
  int32_t derivation = plan::kDerivation;
  for (const NodeDevices& entry : placement) {
    const auto node = nodes.find(entry.node);
    if (node != nodes.end()) derivation = std::min(derivation, node->second.derivation);
  }
  return derivation;
}

std::set<std::string> DeviceNamesOf(const NodeTable& nodes, const Placement& placement) {
  std::set<std::string> names;
  for (const NodeDevices& entry : placement) {
    const auto node = nodes.find(entry.node);
    if (node == nodes.end()) continue;
    for (const int32_t device : entry.devices) {
      const auto index = static_cast<size_t>(device);
      if (index < node->second.device_names.size()) names.insert(node->second.device_names[index]);
    }
  }
  names.erase("");
  return names;
}

std::optional<std::string> ProductsFor(const NodeTable& nodes, const Placement& placement) {
  std::optional<std::string> products;
  for (const NodeDevices& entry : placement) {
    const auto node = nodes.find(entry.node);
    if (node == nodes.end() || node->second.incarnation == Incarnation{}) continue;
    const auto label = node->second.labels.find(job::kProductsLabel);
    const bool none = label == node->second.labels.end() || label->second == job::kNoProducts;
    const std::string table = none ? "" : label->second;
    if (products.value_or(table) != table) return "";
    products = table;
  }
  return products;
}

int64_t CapacityOf(const Node& node) {
  if (!node.MayTakeJobs() || node.lost) return 0;
  int64_t devices = 0;
  for (size_t i = 0; i < node.device_jobs.size(); ++i)
    devices += node.HasFailed(static_cast<int32_t>(i)) ? 0 : 1;
  return devices;
}

int64_t CapacityFor(const NodeTable& nodes, const JobRequest& request) {
  return CapacityWithout(nodes, request, "");
}

int64_t CapacityWithout(const NodeTable& nodes, const JobRequest& request,
                        const NodeName& without) {
  int64_t devices = 0;
  for (const auto& [name, node] : nodes) {
    if (name != without && Matches(node, request)) devices += CapacityOf(node);
  }
  return devices;
}

std::optional<Placement> ChoosePlacement(const NodeTable& nodes, const std::set<NodeName>& closed,
                                         const JobRequest& request) {
  struct Candidate {
    const Node* node;
    int32_t free;
  };
  std::vector<Candidate> candidates;
  int64_t available = 0;
  for (const auto& [name, node] : nodes) {
    if (!node.TakesJobs() || closed.contains(name) || !Matches(node, request)) continue;
    const int32_t free = node.FreeDevices();
    if (free == 0) continue;
    candidates.push_back({&node, free});
    available += free;
  }
  if (request.devices <= 0 || available < request.devices) return std::nullopt;
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.free > b.free; });

  Placement placement;
  int32_t remaining = request.devices;
  for (auto first = candidates.begin(); remaining > 0; ++first) {
    // Sorted by falling size: the last one that still holds all that remains fits it best, and
    // then nothing remains; else the first one is used up.
    auto best = first;
    for (auto it = first; it != candidates.end() && it->free >= remaining; ++it) {
      if (it->free < best->free) best = it;
    }
    NodeDevices entry{.node = best->node->name, .domain = FailureDomainOf(*best->node)};
    for (size_t i = 0; i < best->node->device_jobs.size() && remaining > 0; ++i) {
      if (!best->node->IsFree(static_cast<int32_t>(i))) continue;
      entry.devices.push_back(static_cast<int32_t>(i));
      --remaining;
    }
    placement.push_back(std::move(entry));
  }
  // A rank that does not read them would lay it out otherwise.
  if (DerivationFor(nodes, placement) < plan::kDerivationOfDomains) {
    for (NodeDevices& entry : placement) entry.domain.clear();
  }
  return placement;
}

}  // namespace phalanx::coordinator

#include "core/plan/memory_fit.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "core/base/violation.h"

namespace phalanx::plan {
namespace {

std::string LargestTerm(const MemoryEstimate& need) {
  const std::pair<const char*, int64_t> terms[] = {{"parameters", need.parameters},
                                                   {"gradients", need.gradients},
                                                   {"optimizer", need.optimizer},
                                                   {"activations", need.activations}};
  const auto* largest =
      std::max_element(std::begin(terms), std::end(terms),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return absl::StrCat(largest->first, " ", FormatBytes(largest->second));
}

struct Shortage {
  size_t worst = 0, count = 0;  // the rank that lacks most; how many lack
};

std::optional<Shortage> FindShortage(absl::Span<const MemoryEstimate> needs,
                                     absl::Span<const int64_t> device_memory) {
  Shortage shortage;
  int64_t most = 0;
  for (size_t rank = 0; rank < std::min(needs.size(), device_memory.size()); ++rank) {
    const int64_t lacking = needs[rank].total() - device_memory[rank];
    if (device_memory[rank] == 0 || lacking <= 0) continue;
    ++shortage.count;
    if (lacking <= most) continue;
    most = lacking;
    shortage.worst = rank;
  }
  if (shortage.count == 0) return std::nullopt;
  return shortage;
}

std::string SentenceOf(const Shortage& shortage, absl::Span<const MemoryEstimate> needs,
                       absl::Span<const int64_t> device_memory) {
  const auto& [worst, count] = shortage;
  std::string text = absl::StrCat(
      "rank ", worst, " needs ", FormatBytes(needs[worst].total()), " (", LargestTerm(needs[worst]),
      " is the largest term), device has ", FormatBytes(device_memory[worst]), " for it");
  if (count == 2) absl::StrAppend(&text, "; another rank does not fit either");
  if (count > 2) absl::StrAppend(&text, "; ", count - 1, " other ranks do not fit either");
  return text;
}

struct NodeShortage {
  size_t worst = 0, count = 0;  // the entry that lacks most; how many lack
};

template <typename Bytes>
NodeShortage FindNode(absl::Span<const HostEstimate> needs, absl::Span<const int64_t> nodes,
                      Bytes bytes_of) {
  NodeShortage shortage;
  int64_t most = 0;
  for (size_t node = 0; node < std::min(needs.size(), nodes.size()); ++node) {
    const int64_t lacking = bytes_of(needs[node]) - nodes[node];
    if (nodes[node] == 0 || lacking <= 0) continue;
    ++shortage.count;
    if (lacking <= most) continue;
    most = lacking;
    shortage.worst = node;
  }
  return shortage;
}

const NodeName& NodeOf(const Plan& plan, const NodeShortage& shortage) {
  return plan.layout.nodes[shortage.worst].node;
}

std::string OthersText(const NodeShortage& shortage) {
  if (shortage.count < 2) return "";
  if (shortage.count == 2) return "; another node has not enough either";
  return absl::StrCat("; ", shortage.count - 1, " other nodes have not enough either");
}

// "without ranks 1, 3, ".
std::string LostText(const RankList& lost) {
  constexpr size_t kShown = 8;
  if (lost.empty()) return "";
  std::string text = lost.size() == 1 ? "without rank " : "without ranks ";
  for (size_t i = 0; i < std::min(lost.size(), kShown); ++i) {
    absl::StrAppend(&text, lost[i].value, ", ");
  }
  if (lost.size() > kShown) absl::StrAppend(&text, "..., ");
  return text;
}

// "; replica 0 of module language is 1 wide there instead of 2", of the modules whose replicas have
// become narrower where a rank stands.
std::string NarrowedText(const Plan& plan, Rank rank) {
  std::string text;
  for (const Place& place : plan.PlacesOf(rank)) {
    const job::Module& module = plan.module_spec(place.module);
    if (place.width == module.parallel.tp) continue;
    absl::StrAppend(&text, "; replica ", place.dp, " of module ", module.name, " is ", place.width,
                    " wide there instead of ", module.parallel.tp);
  }
  return text;
}

}  // namespace

void MemoryLimits::LeaveRoom(int64_t bytes) {
  for (size_t device = 0; device < devices.size(); ++device) LeaveRoom(device, bytes);
}

void MemoryLimits::LeaveRoom(size_t device, int64_t bytes) {
  int64_t& left = devices[device];
  if (left > 0) left = std::max<int64_t>(1, left - bytes);
}

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::optional<std::string> MemoryShortage(absl::Span<const MemoryEstimate> needs,
                                          absl::Span<const int64_t> device_memory) {
  const std::optional<Shortage> shortage = FindShortage(needs, device_memory);
  if (!shortage.has_value()) return std::nullopt;
  return SentenceOf(*shortage, needs, device_memory);
}

std::vector<HostEstimate> HostMemoryOf(const Plan& plan, absl::Span<const MemoryEstimate> needs) {
  std::vector<HostEstimate> nodes(plan.layout.nodes.size());
  std::map<absl::string_view, size_t>
      first;  // a node may have several entries: its first one counts
  size_t rank = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeDevices& entry = plan.layout.nodes[i];
    HostEstimate& node = nodes[first.try_emplace(entry.node, i).first->second];
    for (const size_t end = rank + entry.devices.size(); rank < end; ++rank) {
      if (rank >= needs.size()) continue;  // devices beyond the ranks
      node.copies += needs[rank].host.copies;
      node.snapshot += needs[rank].host.snapshot;
    }
  }
  return nodes;
}

std::optional<HostShortage> SnapshotShortage(const Plan& plan, absl::Span<const HostEstimate> needs,
                                             absl::Span<const int64_t> nodes) {
  const NodeShortage shortage =
      FindNode(needs, nodes, [](const HostEstimate& need) { return need.snapshot; });
  if (shortage.count == 0) return std::nullopt;
  return HostShortage{
      shortage.worst,
      absl::StrCat(NodeOf(plan, shortage), " needs ", FormatBytes(needs[shortage.worst].snapshot),
                   " of host memory for the copy that checkpoints are written from and has ",
                   FormatBytes(nodes[shortage.worst]), OthersText(shortage))};
}

std::optional<HostShortage> CopiesShortage(const Plan& plan, absl::Span<const HostEstimate> needs,
                                           absl::Span<const int64_t> nodes) {
  const NodeShortage shortage = FindNode(
      needs, nodes, [](const HostEstimate& need) { return need.copies > 0 ? need.total() : 0; });
  if (shortage.count == 0) return std::nullopt;
  const HostEstimate& need = needs[shortage.worst];
  const std::string beside =
      need.snapshot > 0
          ? absl::StrCat(", beside ", FormatBytes(need.snapshot), " for checkpoints, and has ")
          : " and has ";
  return HostShortage{shortage.worst,
                      absl::StrCat(NodeOf(plan, shortage), " needs ", FormatBytes(need.copies),
                                   " of host memory for second homes of optimizer state", beside,
                                   FormatBytes(nodes[shortage.worst]), OthersText(shortage))};
}

bool MayLack(const Plan& plan, const MemoryLimits& limits) {
  const auto known = [](const std::vector<int64_t>& memory) {
    return std::any_of(memory.begin(), memory.end(), [](int64_t bytes) { return bytes != 0; });
  };
  return known(limits.devices) || (known(limits.nodes) && TakesHostMemory(plan));
}

absl::Status CheckDeviceMemory(const Plan& plan, absl::Span<const MemoryEstimate> needs,
                               absl::Span<const int64_t> device_memory) {
  const std::optional<Shortage> shortage = FindShortage(needs, device_memory);
  if (!shortage.has_value()) return absl::OkStatus();
  return ViolationsStatus(
      {{.field = "spec.modules",
        .rule =
            absl::StrCat(LostText(plan.layout.lost), SentenceOf(*shortage, needs, device_memory),
                         NarrowedText(plan, Rank{static_cast<int32_t>(shortage->worst)}))}});
}

absl::Status CheckHostMemory(const Plan& plan, absl::Span<const MemoryEstimate> needs,
                             absl::Span<const int64_t> nodes) {
  std::vector<Violation> violations;
  const std::vector<HostEstimate> host = HostMemoryOf(plan, needs);
  const std::string lost = LostText(plan.layout.lost);
  if (const auto shortage = SnapshotShortage(plan, host, nodes)) {
    violations.push_back({.field = "spec.checkpoint", .rule = absl::StrCat(lost, shortage->text)});
  }
  if (plan.spec.recovery.state_home == job::StateHome::kHost) {
    if (const auto shortage = CopiesShortage(plan, host, nodes)) {
      violations.push_back({.field = "spec.recovery.state_home",
                            .value = "host",
                            .rule = absl::StrCat(lost, shortage->text)});
    }
  }
  return ViolationsStatus(violations);
}

absl::Status CheckMemory(const Plan& plan, absl::Span<const MemoryEstimate> needs,
                         const MemoryLimits& limits) {
  std::vector<Violation> violations = ViolationsOf(CheckDeviceMemory(plan, needs, limits.devices));
  for (Violation& violation : ViolationsOf(CheckHostMemory(plan, needs, limits.nodes)))
    violations.push_back(std::move(violation));
  return ViolationsStatus(violations);
}

absl::Status CheckMemory(const Plan& plan, const MemoryLimits& limits) {
  if (!MayLack(plan, limits)) return absl::OkStatus();
  return CheckMemory(plan, EstimateMemory(plan), limits);
}

}  // namespace phalanx::plan

#include "core/schedule/losses.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/job/family.h"
#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/part_sizes.h"
#include "core/plan/shares.h"
#include "core/plan/state_table.h"
#include "core/schedule/admission.h"

namespace phalanx::schedule {
namespace {

// Ranks over all losses that are looked at, so that a large plan takes no longer than a small one
// with as many.
constexpr int64_t kRanksMax = 1'000'000;

struct Memory {
  int64_t device = std::numeric_limits<int64_t>::max();
  int64_t node = std::numeric_limits<int64_t>::max();
};

// The memory of the ranks that take over from one at a place.
class MemoryAround {
 public:
  MemoryAround(const plan::Plan& plan, const plan::MemoryLimits& limits)
      : plan_(plan), limits_(limits) {}
  // To the least of theirs that is known.
  void Lower(const plan::Place& place, Memory* least) const {
    for (Rank rank : plan_.TensorGroup(place.module, place.dp, place.pp, place.cp)) {
      const auto index = static_cast<size_t>(rank.value);
      Lower(limits_.devices, index, &least->device);
      Lower(limits_.nodes, static_cast<size_t>(plan_.node_of[index]), &least->node);
    }
  }

 private:
  static void Lower(const std::vector<int64_t>& memory, size_t index, int64_t* least) {
    if (index < memory.size() && memory[index] > 0) *least = std::min(*least, memory[index]);
  }
  const plan::Plan& plan_;
  const plan::MemoryLimits& limits_;
};

// Of those devices whose loss comes to the same, ranks of the same stages of the same modules of
// the same width: one with the least memory beside it, of devices and of nodes. Of large plans some
// of these, evenly.
std::vector<Rank> KindsOfDevices(const plan::Plan& plan, const plan::MemoryLimits& limits) {
  const MemoryAround around(plan, limits);
  struct Kind {
    Memory least;
    Rank of_devices, of_nodes;
  };
  using Part = std::tuple<int32_t, int32_t, int32_t>;  // module, pp, width
  std::map<std::vector<Part>, Kind> kinds;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    std::vector<Part> parts;
    Memory here;
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      parts.emplace_back(place.module, place.pp, place.width);
      around.Lower(place, &here);
    }
    if (parts.empty()) continue;
    const auto [entry, is_new] =
        kinds.try_emplace(std::move(parts), Kind{here, Rank{rank}, Rank{rank}});
    Kind& kind = entry->second;
    if (here.device < kind.least.device) {
      kind.least.device = here.device;
      kind.of_devices = Rank{rank};
    }
    if (here.node < kind.least.node) {
      kind.least.node = here.node;
      kind.of_nodes = Rank{rank};
    }
  }
  std::set<Rank> found;
  for (const auto& [parts, kind] : kinds) found.insert({kind.of_devices, kind.of_nodes});
  std::vector<Rank> ranks(found.begin(), found.end());
  const size_t most = static_cast<size_t>(std::max<int64_t>(1, kRanksMax / plan.world));
  if (ranks.size() <= most) return ranks;
  std::vector<Rank> some;
  for (size_t i = 0; i < most; ++i) some.push_back(ranks[i * ranks.size() / most]);
  return some;
}

// Steps that are lost at most where no home is left; -1: all.
int64_t StepsWithoutHomes(const plan::Plan& plan) {
  return plan.spec.WritesCheckpointsOnTheWay() ? plan.spec.checkpoint->every : -1;
}

// Of what is left, while state moves there.
std::vector<plan::MemoryEstimate> NeedsOfMoving(const plan::Plan& left, plan::PartSizes& sizes) {
  std::vector<plan::MemoryEstimate> needs = plan::EstimateMemory(left, {}, sizes);
  for (plan::MemoryEstimate& need : needs) {
    if (need.total() > 0) need.optimizer += kMoveBytes;
  }
  return needs;
}

Loss LossOf(const plan::Plan& plan, Rank rank, const plan::MemoryLimits& limits,
            plan::PartSizes& sizes) {
  Loss loss{.rank = rank};
  const auto costs = [&](std::string why) {
    loss.trouble = std::move(why);
    loss.steps = StepsWithoutHomes(plan);
    return loss;
  };
  plan::Change change{.lost = {rank}, .spares = false, .restart = false};
  absl::StatusOr<plan::Plan> left = plan::PlanAfter(plan, change);
  const bool restarts = !left.ok();
  if (restarts) {
    change.restart = true;
    left = plan::PlanAfter(plan, change, limits, &sizes);
  }
  const std::vector<plan::Place> places = plan.PlacesOf(rank);
  const bool only_home =
      std::any_of(places.begin(), places.end(),
                  [&plan](const plan::Place& place) { return HasOneHome(plan, place); });
  if (!left.ok()) {
    const std::vector<job::Rung>& ladder = plan.spec.recovery.ladder;
    loss.waits =
        !only_home && std::find(ladder.begin(), ladder.end(), job::Rung::kWait) != ladder.end();
    return costs(std::string(left.status().message()));
  }
  const std::vector<plan::MemoryEstimate> needs = NeedsOfMoving(*left, sizes);
  // Nothing is lowered for a restart's sake: it takes what degrees fit.
  if (const auto shortage = plan::MemoryShortage(needs, limits.devices);
      shortage.has_value() && !restarts) {
    loss.of_memory = true;
    return costs(*shortage);
  }
  const std::vector<plan::HostEstimate> host = plan::HostMemoryOf(*left, needs);
  // Nothing that is lowered makes these less.
  if (const auto shortage = plan::SnapshotShortage(*left, host, limits.nodes))
    return costs(shortage->text);
  if (const auto shortage = plan::CopiesShortage(*left, host, limits.nodes)) {
    if (!LeavesHomesOpen(plan.spec)) return costs(shortage->text);
    loss.homeless = shortage->text;
  }
  if (only_home) return costs("a part of the optimizer state has no second home");
  return loss;
}

// "costs up to 50 steps"; -1: all.
std::string Costs(int64_t steps) {
  if (steps < 0) return "costs all steps so far";
  return absl::StrCat("costs up to ", steps, steps == 1 ? " step" : " steps");
}

std::string CostOf(const plan::Plan& plan, const std::vector<Loss>& losses) {
  const Loss& worst = losses.front();
  const std::string vain =
      worst.waits ? absl::StrCat(" where it is not back within ",
                                 absl::FormatDuration(plan.spec.recovery.hold), " (recovery.hold)")
                  : "";
  return absl::StrCat(
      "losing device ", DeviceOf(plan, worst.rank),
      losses.size() > 1 ? absl::StrCat(", or another of ", losses.size(), " kinds,") : "", " ",
      worst.waits ? "makes the job wait for it, which " : "", Costs(worst.steps), vain, ": ",
      worst.trouble);
}

std::string HomelessNote(const plan::Plan& plan, const Loss& loss) {
  return absl::StrCat("without device ", DeviceOf(plan, loss.rank),
                      " some optimizer state has no second home: ", loss.homeless);
}

// Of some state of a stage all ranks that may be its homes, or, where widths are unequal, that are.
std::vector<plan::RankList> GroupsOfHomes(const plan::Plan& plan, const plan::ModulePlan& module,
                                          int32_t pp) {
  if (module.replicas.EqualWidths(pp)) return plan.DataGroups(module.index, pp);
  std::set<plan::RankList> groups;
  if (!job::TraitsOf(plan.module_spec(module.index).architecture).known()) return {};
  for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
    if (!module.TrainsOf(pp, chunk).weights) continue;
    const plan::StateTable table = plan::StateTableOf(plan, {module.index, pp, chunk});
    for (const plan::HomedRuler& ruler : table.rulers) {
      for (const plan::HomedRun& run : ruler.runs)
        groups.insert(table.homes[static_cast<size_t>(run.homes)]);
    }
  }
  return {groups.begin(), groups.end()};
}

// Nodes that have every home of some of a module's state, in the order of their first ranks.
std::vector<NodeName> NodesWithAllHomes(const plan::Plan& plan, const plan::ModulePlan& module) {
  const plan::ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module.index)];
  if (!module.TrainsWeights() || layout.state_copies < 2) return {};
  const bool host = layout.state_home == job::StateHome::kHost;
  std::map<NodeName, Rank> first;  // of each node
  for (int32_t pp = 0; pp < module.pp(); ++pp) {
    for (const plan::RankList& group : GroupsOfHomes(plan, module, pp)) {
      const bool together = std::all_of(group.begin(), group.end(), [&](Rank rank) {
        return plan.NodeOf(rank) == plan.NodeOf(group.front());
      });
      if (!host && !together) continue;
      for (Rank rank : group) {
        const auto [entry, is_new] = first.try_emplace(plan.NodeOf(rank), rank);
        if (!is_new) entry->second = std::min(entry->second, rank);
      }
    }
  }
  std::vector<NodeName> nodes;
  for (const auto& [node, rank] : first) nodes.push_back(node);
  std::sort(nodes.begin(), nodes.end(),
            [&first](const NodeName& a, const NodeName& b) { return first.at(a) < first.at(b); });
  return nodes;
}

// Of modules of which a node has all homes. A job on one node ends with it anyway.
std::vector<std::string> NodeNotesOf(const plan::Plan& plan) {
  bool one_node = true;
  for (Rank rank{0}; one_node && rank.value < plan.world; ++rank.value)
    one_node = plan.NodeOf(rank) == plan.NodeOf(Rank{0});
  if (one_node) return {};
  std::vector<std::string> notes;
  for (const plan::ModulePlan& module : plan.modules) {
    const std::vector<NodeName> nodes = NodesWithAllHomes(plan, module);
    if (nodes.empty()) continue;
    notes.push_back(absl::StrCat(
        "losing node ", nodes.front(),
        nodes.size() > 1 ? absl::StrCat(", or another of ", nodes.size(), ",") : "", " ",
        Costs(StepsWithoutHomes(plan)), ": it has all homes of the state of module ",
        plan.module_spec(module.index).name));
  }
  return notes;
}

// Calls `see` with all homes of some of the module's state that has mirrors, of each of it once or
// more.
template <typename See>
void ForEachHomes(const plan::Plan& plan, const plan::ModulePlan& module, See see) {
  for (int32_t pp = 0; pp < module.pp(); ++pp) {
    for (const plan::RankList& group : GroupsOfHomes(plan, module, pp)) {
      if (!module.replicas.EqualWidths(pp)) {
        see(group);
        continue;
      }
      for (const plan::RankList& homes : plan::HomesOf(plan, module.index, group)) see(homes);
    }
  }
}

// The same of failure domains of several nodes, where a node alone has not all homes.
std::vector<std::string> DomainNotesOf(const plan::Plan& plan) {
  const plan::Placement& nodes = plan.layout.nodes;
  const bool any = std::any_of(nodes.begin(), nodes.end(),
                               [](const auto& node) { return !node.domain.empty(); });
  bool one_domain = true;
  for (Rank rank{0}; any && one_domain && rank.value < plan.world; ++rank.value)
    one_domain = plan.FailTogether(rank, Rank{0});
  if (one_domain) return {};
  std::vector<std::string> notes;
  for (const plan::ModulePlan& module : plan.modules) {
    if (!module.TrainsWeights() || !plan::IsMirrored(plan, module.index)) continue;
    std::map<std::string, Rank> first;  // of each domain
    ForEachHomes(plan, module, [&](const plan::RankList& homes) {
      const auto all = [&](auto are_together) {
        return std::all_of(homes.begin(), homes.end(),
                           [&](Rank rank) { return are_together(rank, homes.front()); });
      };
      if (!all([&](Rank a, Rank b) { return plan.FailTogether(a, b); })) return;
      if (all([&](Rank a, Rank b) { return plan.NodeOf(a) == plan.NodeOf(b); })) return;
      const Rank least = *std::min_element(homes.begin(), homes.end());
      const auto [entry, is_new] = first.try_emplace(plan.EntryOf(least).domain, least);
      if (!is_new) entry->second = std::min(entry->second, least);
    });
    if (first.empty()) continue;
    const auto named =
        std::min_element(first.begin(), first.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    notes.push_back(absl::StrCat(
        "losing failure domain ", named->first,
        first.size() > 1 ? absl::StrCat(", or another of ", first.size(), ",") : "", " ",
        Costs(StepsWithoutHomes(plan)), ": it has all homes of some state of module ",
        plan.module_spec(module.index).name));
  }
  return notes;
}

}  // namespace

bool HasOneHome(const plan::Plan& plan, const plan::Place& place) {
  if (plan::CopiesToHost(plan) || plan::IsMirrored(plan, place.module) ||
      !job::TraitsOf(plan.module_spec(place.module).architecture).known()) {
    return false;
  }
  const plan::ModulePlan& module = plan.modules[static_cast<size_t>(place.module)];
  for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
    if (module.TrainsOf(place.pp, chunk).weights) return true;
  }
  return false;
}

std::string DeviceOf(const plan::Plan& plan, Rank rank) {
  const plan::Device device = plan.DeviceOf(rank);
  return absl::StrCat(device.node, "/", device.index);
}

bool LeavesHomesOpen(const job::JobSpec& spec) {
  return spec.recovery.state_home == job::StateHome::kAuto;
}

Losses LossesOf(const plan::Plan& plan, const plan::MemoryLimits& limits) {
  plan::PartSizes sizes;  // most parts are the same whatever is lost
  return LossesOf(plan, limits, sizes);
}

Losses LossesOf(const plan::Plan& plan, const plan::MemoryLimits& limits, plan::PartSizes& sizes) {
  Losses losses;
  losses.looked_at = KindsOfDevices(plan, limits);
  for (const Rank rank : losses.looked_at) {
    Loss loss = LossOf(plan, rank, limits, sizes);
    if (!loss.trouble.empty()) {
      losses.costly.push_back(std::move(loss));
    } else if (!loss.homeless.empty() && !losses.homeless.has_value()) {
      losses.homeless = std::move(loss);
    }
  }
  std::stable_sort(losses.costly.begin(), losses.costly.end(), [](const Loss& a, const Loss& b) {
    // What is lost for certain before what is where the job waits in vain.
    if (a.steps == b.steps) return !a.waits && b.waits;
    return static_cast<uint64_t>(a.steps) > static_cast<uint64_t>(b.steps);
  });
  return losses;
}

std::optional<std::string> RiskOfMoving(const plan::Plan& left,
                                        const std::vector<int64_t>& devices) {
  if (devices.empty()) return std::nullopt;
  plan::PartSizes sizes;
  const auto shortage = plan::MemoryShortage(NeedsOfMoving(left, sizes), devices);
  if (!shortage.has_value()) return std::nullopt;
  return absl::StrCat("losing these devices while the job runs ", Costs(StepsWithoutHomes(left)),
                      ": ", *shortage);
}

std::vector<std::string> RisksOf(const plan::Plan& plan, const Losses& losses) {
  std::vector<std::string> risks;
  if (!losses.costly.empty()) risks.push_back(CostOf(plan, losses.costly));
  if (losses.homeless.has_value()) risks.push_back(HomelessNote(plan, *losses.homeless));
  for (std::string& note : NodeNotesOf(plan)) risks.push_back(std::move(note));
  for (std::string& note : DomainNotesOf(plan)) risks.push_back(std::move(note));
  return risks;
}

}  // namespace phalanx::schedule

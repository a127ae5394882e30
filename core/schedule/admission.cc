#include "core/schedule/admission.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/family.h"
#include "core/job/schema.h"
#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/shares.h"
#include "core/plan/state_table.h"
#include "core/schedule/choice.h"

namespace phalanx::schedule {
namespace {

// Ranks over all losses that are looked at, so that a large plan takes no longer than a small one
// with as many.
constexpr int64_t kRanksMax = 1'000'000;

// What is known of the memory of the ranks that take over from one of them at a place, of devices
// and of nodes: the least of each; 0: nothing.
class MemoryAround {
 public:
  MemoryAround(const plan::Plan& plan, const plan::MemoryLimits& limits)
      : plan_(plan), limits_(limits) {
    for (size_t node = 0; node < plan.layout.nodes.size(); ++node)
      node_of_.insert(node_of_.end(), plan.layout.nodes[node].devices.size(), node);
  }
  std::pair<int64_t, int64_t> At(const plan::Place& place) const {
    int64_t device = 0, node = 0;
    for (Rank rank : plan_.TensorGroup(place.module, place.dp, place.pp, place.cp)) {
      const auto index = static_cast<size_t>(rank.value);
      Lower(limits_.devices, index, &device);
      if (index < node_of_.size()) Lower(limits_.nodes, node_of_[index], &node);
    }
    return {device, node};
  }

 private:
  static void Lower(const std::vector<int64_t>& memory, size_t index, int64_t* least) {
    if (index >= memory.size() || memory[index] == 0) return;
    *least = *least == 0 ? memory[index] : std::min(*least, memory[index]);
  }
  const plan::Plan& plan_;
  const plan::MemoryLimits& limits_;
  std::vector<size_t> node_of_;  // of each rank, into Layout::nodes
};

// One device of those whose loss comes to the same: ranks of the same stages of the same modules,
// beside which there is as much memory. Of large plans some of these, evenly.
std::vector<Rank> KindsOfDevices(const plan::Plan& plan, const plan::MemoryLimits& limits) {
  const MemoryAround around(plan, limits);
  using Part = std::tuple<int32_t, int32_t, std::pair<int64_t, int64_t>>;  // module, pp, memory
  std::map<std::vector<Part>, Rank> kinds;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    std::vector<Part> parts;
    for (const plan::Place& place : plan.PlacesOf(Rank{rank}))
      parts.emplace_back(place.module, place.pp, around.At(place));
    if (!parts.empty()) kinds.try_emplace(std::move(parts), Rank{rank});
  }
  std::vector<Rank> ranks;
  for (const auto& [parts, rank] : kinds) ranks.push_back(rank);
  std::sort(ranks.begin(), ranks.end());
  const size_t most = static_cast<size_t>(std::max<int64_t>(1, kRanksMax / plan.world));
  if (ranks.size() <= most) return ranks;
  std::vector<Rank> some;
  for (size_t i = 0; i < most; ++i) some.push_back(ranks[i * ranks.size() / most]);
  return some;
}

std::string DeviceOf(const plan::Plan& plan, Rank rank) {
  const plan::Device& device = plan.devices[static_cast<size_t>(rank.value)];
  return absl::StrCat(device.node, "/", device.index);
}

// What the loss of one device comes to.
struct Loss {
  Rank rank;
  // Why training cannot go on without it from where it stands: a sentence; empty: it can.
  std::string trouble;
  bool of_memory = false;  // what is left does not fit
  int64_t steps = 0;       // that are lost at most; -1: all
  // Why some state has no second home from then on: a sentence; empty: it has, or had none.
  std::string homeless;
};

// Steps that are lost at most where no home is left; -1: all.
int64_t StepsWithoutHomes(const plan::Plan& plan) {
  const int64_t every = plan.spec.checkpoint.has_value() ? plan.spec.checkpoint->every : 0;
  return every > 0 ? every : -1;
}

bool TrainsAnything(const plan::ModulePlan& module) {
  return std::any_of(module.trains.begin(), module.trains.end(),
                     [](const plan::Trains& part) { return part.weights; });
}

// Whether optimizer state that a rank is a home of has another one.
bool HasSecondHomes(const plan::Plan& plan, Rank rank) {
  if (plan::CopiesToHost(plan)) return true;
  const std::vector<plan::Place> places = plan.PlacesOf(rank);
  return std::all_of(places.begin(), places.end(), [&](const plan::Place& place) {
    if (plan::IsMirrored(plan, place.module) ||
        !job::TraitsOf(plan.module_spec(place.module).architecture).known()) {
      return true;
    }
    const plan::ModulePlan& module = plan.modules[static_cast<size_t>(place.module)];
    for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
      if (module.TrainsOf(place.pp, chunk).weights) return false;
    }
    return true;
  });
}

bool LeavesHomesOpen(const job::JobSpec& spec) {
  return spec.recovery.state_home == job::StateHome::kAuto;
}

Loss LossOf(const plan::Plan& plan, Rank rank, const plan::MemoryLimits& limits) {
  Loss loss{.rank = rank};
  const auto costs = [&](std::string why) {
    loss.trouble = std::move(why);
    loss.steps = StepsWithoutHomes(plan);
    return loss;
  };
  const absl::StatusOr<plan::Plan> left = plan::PlanWithout(plan, {rank});
  if (!left.ok()) return costs(std::string(left.status().message()));
  std::vector<plan::MemoryEstimate> needs = plan::EstimateMemory(*left);
  for (plan::MemoryEstimate& need : needs) {
    if (need.total() > 0) need.optimizer += kMoveBytes;
  }
  if (const auto shortage = plan::MemoryShortage(needs, limits.devices)) {
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
  if (!HasSecondHomes(plan, rank)) return costs("a part of the optimizer state has no second home");
  return loss;
}

struct Losses {
  std::vector<Loss> costly;  // that training does not survive where it stands, the dearest first
  std::optional<Loss> homeless;  // the first that it survives without some second home
};
Losses LossesOf(const plan::Plan& plan, const plan::MemoryLimits& limits) {
  Losses losses;
  for (const Rank rank : KindsOfDevices(plan, limits)) {
    Loss loss = LossOf(plan, rank, limits);
    if (!loss.trouble.empty()) {
      losses.costly.push_back(std::move(loss));
    } else if (!loss.homeless.empty() && !losses.homeless.has_value()) {
      losses.homeless = std::move(loss);
    }
  }
  std::stable_sort(losses.costly.begin(), losses.costly.end(), [](const Loss& a, const Loss& b) {
    return static_cast<uint64_t>(a.steps) > static_cast<uint64_t>(b.steps);
  });
  return losses;
}

// A second home in host memory that is left out.
struct Dropped {
  int32_t module = 0;
  std::string why;  // a sentence about the node that has no room for it
};

// Leaves all second homes in host memory out of the layout where the nodes have no room: while any
// is there, ranks copy the state of all modules. Snapshots fit.
std::vector<Dropped> DropHostHomes(const plan::Plan& plan,
                                   absl::Span<const plan::MemoryEstimate> needs,
                                   absl::Span<const int64_t> nodes, plan::Layout* layout) {
  std::vector<Dropped> dropped;
  const std::vector<plan::HostEstimate> sum = plan::HostMemoryOf(plan, needs);
  const auto shortage = plan::CopiesShortage(plan, sum, nodes);
  if (!shortage.has_value()) return dropped;
  for (const plan::ModulePlan& module : plan.modules) {
    if (!TrainsAnything(module) || !plan::HasHostHome(plan, module.index)) continue;
    layout->modules[static_cast<size_t>(module.index)].state_copies = 1;
    dropped.push_back({.module = module.index, .why = shortage->text});
  }
  return dropped;
}

std::string NoteOf(const job::JobSpec& spec, const Dropped& dropped) {
  return absl::StrCat("optimizer state of module ",
                      spec.modules[static_cast<size_t>(dropped.module)].name,
                      " has no second home: ", dropped.why);
}

// Instead of mirrors.
enum class Homes : uint8_t {
  kMirrors,     // nothing
  kHost,        // host memory; only where the nodes have room for all of it
  kHostOrNone,  // host memory where the nodes have room; only where they have not for all of it
};

// What a plan may be lowered to.
struct Lowering {
  int64_t micro = 0;  // 0: as written
  Homes homes = Homes::kMirrors;
  std::optional<job::Recompute> recompute;  // at least
};

// As written first, then what costs least.
std::vector<Lowering> Lowerings(const job::JobSpec& spec) {
  std::vector<Lowering> all = {{}};
  for (int64_t micro = spec.batch.micro / 2; micro >= 1; micro /= 2)
    all.push_back({.micro = micro});
  const int64_t least = spec.batch.micro > 1 ? 1 : 0;
  const std::optional<job::Recompute> recomputes[] = {std::nullopt, job::Recompute::kSelective,
                                                      job::Recompute::kFull};
  for (const auto& recompute : recomputes) {
    if (recompute.has_value()) all.push_back({least, Homes::kMirrors, recompute});
    if (LeavesHomesOpen(spec)) all.push_back({least, Homes::kHost, recompute});
  }
  if (!LeavesHomesOpen(spec)) return all;
  for (const auto& recompute : recomputes) all.push_back({least, Homes::kHostOrNone, recompute});
  return all;
}

// The plan's layout, lowered. Nothing else of it is decided again.
absl::StatusOr<plan::Plan> Lowered(const job::JobSpec& spec, const plan::Layout& as_written,
                                   const Lowering& lowering) {
  plan::Layout layout = as_written;
  layout.micro = lowering.micro;
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    plan::ModuleLayout& module = layout.modules[i];
    if (lowering.homes != Homes::kMirrors && module.state_home == job::StateHome::kMirror) {
      module.state_home = job::StateHome::kHost;
      module.state_copies = std::min(module.state_copies, 2);
    }
    if (lowering.recompute.has_value() && spec.modules[i].recompute < *lowering.recompute)
      module.recompute = lowering.recompute;
  }
  return plan::Expand(spec, std::move(layout));
}

// Whether the second home of any module has moved to host memory, and is there.
bool MovesHomes(const plan::Layout& from, const plan::Layout& to) {
  for (size_t i = 0; i < from.modules.size(); ++i) {
    if (from.modules[i].state_home != to.modules[i].state_home && to.modules[i].state_copies > 1)
      return true;
  }
  return false;
}

std::vector<std::string> NotesOf(const job::JobSpec& spec, const Lowering& lowering,
                                 bool moves_homes, absl::string_view why) {
  std::vector<std::string> notes;
  const auto add = [&](std::string what) { notes.push_back(absl::StrCat(what, ": ", why)); };
  if (lowering.micro > 0) {
    add(absl::StrCat("batch.micro is ", lowering.micro, " instead of ", spec.batch.micro));
  }
  if (moves_homes) add("optimizer state has its second home in host memory instead of mirrors");
  for (const job::Module& module : spec.modules) {
    if (!lowering.recompute.has_value() || module.recompute >= *lowering.recompute) continue;
    add(absl::StrCat("recompute of module ", module.name, " is ",
                     job::RecomputeNames()[static_cast<size_t>(*lowering.recompute)],
                     " instead of ", job::RecomputeNames()[static_cast<size_t>(module.recompute)]));
  }
  return notes;
}

// "costs up to 50 steps"; -1: all.
std::string Costs(int64_t steps) {
  if (steps < 0) return "costs all steps so far";
  return absl::StrCat("costs up to ", steps, steps == 1 ? " step" : " steps");
}

std::string CostOf(const plan::Plan& plan, const std::vector<Loss>& losses) {
  const Loss& worst = losses.front();
  return absl::StrCat(
      "losing device ", DeviceOf(plan, worst.rank),
      losses.size() > 1 ? absl::StrCat(", or another of ", losses.size(), " kinds,") : "", " ",
      Costs(worst.steps), ": ", worst.trouble);
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
  if (!TrainsAnything(module) || layout.state_copies < 2) return {};
  const bool host = layout.state_home == job::StateHome::kHost;
  const auto node_of = [&](Rank rank) -> const NodeName& {
    return plan.devices[static_cast<size_t>(rank.value)].node;
  };
  std::map<NodeName, Rank> first;  // of each node
  for (int32_t pp = 0; pp < module.pp(); ++pp) {
    for (const plan::RankList& group : GroupsOfHomes(plan, module, pp)) {
      const bool together = std::all_of(group.begin(), group.end(), [&](Rank rank) {
        return node_of(rank) == node_of(group.front());
      });
      if (!host && !together) continue;
      for (Rank rank : group) {
        const auto [entry, is_new] = first.try_emplace(node_of(rank), rank);
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
  const NodeName& first = plan.devices.front().node;
  if (std::all_of(plan.devices.begin(), plan.devices.end(),
                  [&](const plan::Device& device) { return device.node == first; })) {
    return {};
  }
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

// What losing a device or a node costs.
std::vector<std::string> RisksOf(const plan::Plan& plan, const Losses& losses) {
  std::vector<std::string> risks;
  if (!losses.costly.empty()) risks.push_back(CostOf(plan, losses.costly));
  if (losses.homeless.has_value()) risks.push_back(HomelessNote(plan, *losses.homeless));
  for (std::string& note : NodeNotesOf(plan)) risks.push_back(std::move(note));
  return risks;
}

// Nothing where all fits for sure.
std::vector<plan::MemoryEstimate> NeedsOf(const plan::Plan& plan,
                                          const plan::MemoryLimits& limits) {
  if (!plan::MayLack(plan, limits)) return {};
  return plan::EstimateMemory(plan);
}

// A plan that fits, and which second homes it leaves out beyond those that `base` does.
struct Candidate {
  plan::Plan plan;
  std::vector<Dropped> dropped;
};
std::optional<Candidate> CandidateOf(const job::JobSpec& spec, const plan::Layout& base,
                                     const Lowering& lowering, const plan::MemoryLimits& limits) {
  if (lowering.homes == Homes::kHostOrNone && limits.nodes.empty()) return std::nullopt;
  absl::StatusOr<plan::Plan> plan = Lowered(spec, base, lowering);
  if (!plan.ok()) return std::nullopt;
  const std::vector<plan::MemoryEstimate> needs = NeedsOf(*plan, limits);
  if (!plan::CheckDeviceMemory(*plan, needs, limits.devices).ok()) return std::nullopt;
  Candidate candidate;
  if (lowering.homes != Homes::kMirrors) {
    plan::Layout layout = plan->layout;
    candidate.dropped = DropHostHomes(*plan, needs, limits.nodes, &layout);
    if (candidate.dropped.empty() != (lowering.homes == Homes::kHost)) return std::nullopt;
    if (!candidate.dropped.empty()) plan = plan::Expand(spec, std::move(layout));
    if (!plan.ok()) return std::nullopt;
  }
  candidate.plan = *std::move(plan);
  return candidate;
}

// `misfit`, or, if the mirrors that the job asks for by name are what does not fit, that.
absl::Status OfMirrors(const job::JobSpec& spec, const plan::Plan& as_written,
                       const plan::MemoryLimits& limits, const absl::Status& misfit) {
  if (spec.recovery.state_home != job::StateHome::kMirror) return misfit;
  plan::Layout one_home = as_written.layout;
  for (plan::ModuleLayout& module : one_home.modules) module.state_copies = 1;
  for (const Lowering& lowering : Lowerings(spec)) {
    const absl::StatusOr<plan::Plan> plan = Lowered(spec, one_home, lowering);
    if (!plan.ok() || !plan::CheckMemory(*plan, limits).ok()) continue;
    std::vector<Violation> violations = ViolationsOf(misfit);
    for (Violation& violation : violations) {
      violation.field = "spec.recovery.state_home";
      violation.value = "mirror";
      absl::StrAppend(&violation.rule, "; with state_copies 1 there is room");
    }
    return ViolationsStatus(violations);
  }
  return misfit;
}

}  // namespace

absl::StatusOr<plan::Plan> AdmitJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                    const plan::MemoryLimits& limits, Epoch epoch) {
  ASSIGN_OR_RETURN(const plan::Plan as_written, PlanJob(spec, cluster, epoch));
  const std::vector<plan::MemoryEstimate> needs = NeedsOf(as_written, limits);
  RETURN_IF_ERROR(plan::CheckHostMemory(as_written, needs, limits.nodes));
  const absl::Status fits = plan::CheckDeviceMemory(as_written, needs, limits.devices);
  plan::Layout base = as_written.layout;
  const std::vector<Dropped> dropped = DropHostHomes(as_written, needs, limits.nodes, &base);
  // Of those that fit the first under which the fewest losses are too much.
  std::optional<plan::Plan> best;
  size_t fewest = 0;
  std::string why;  // anything is lowered
  for (const Lowering& lowering : Lowerings(spec)) {
    std::optional<Candidate> candidate = CandidateOf(spec, base, lowering, limits);
    if (!candidate.has_value()) continue;
    plan::Plan& plan = candidate->plan;
    const Losses losses = LossesOf(plan, limits);
    // Nothing that is lowered gives state a second home, or a module another replica.
    const auto of_memory = std::find_if(losses.costly.begin(), losses.costly.end(),
                                        [](const Loss& loss) { return loss.of_memory; });
    if (why.empty() && !fits.ok()) why = "as written the job does not fit";
    if (why.empty() && of_memory != losses.costly.end()) {
      why = absl::StrCat("without ", DeviceOf(plan, of_memory->rank), ", ", of_memory->trouble);
    }
    if (!best.has_value() || losses.costly.size() < fewest) {
      fewest = losses.costly.size();
      plan.candidates = as_written.candidates;
      plan.notes = NotesOf(spec, lowering, MovesHomes(base, plan.layout), why);
      for (const Dropped& one : dropped) plan.notes.push_back(NoteOf(spec, one));
      for (Dropped& one : candidate->dropped) {
        one.why = absl::StrCat(why, ", and ", one.why);
        plan.notes.push_back(NoteOf(spec, one));
      }
      for (std::string& risk : RisksOf(plan, losses)) plan.notes.push_back(std::move(risk));
      best = std::move(plan);
    }
    if (of_memory == losses.costly.end()) break;
  }
  if (best.has_value()) return *std::move(best);
  return OfMirrors(spec, as_written, limits, fits);
}

absl::StatusOr<plan::Plan> AdmitWithout(const plan::Plan& healthy, absl::Span<const Rank> lost,
                                        const plan::MemoryLimits& limits) {
  ASSIGN_OR_RETURN(plan::Plan plan, plan::PlanWithout(healthy, lost));
  const std::vector<plan::MemoryEstimate> needs = NeedsOf(plan, limits);
  RETURN_IF_ERROR(plan::CheckMemory(plan, needs, limits));
  // What was lowered stays so; what a loss costs is another matter now.
  const std::vector<std::string> before = RisksOf(healthy, LossesOf(healthy, limits));
  std::erase_if(plan.notes, [&before](const std::string& note) {
    return std::find(before.begin(), before.end(), note) != before.end();
  });
  plan::Layout layout = plan.layout;
  const std::vector<Dropped> dropped = DropHostHomes(plan, needs, limits.nodes, &layout);
  if (!dropped.empty()) {
    ASSIGN_OR_RETURN(plan::Plan lowered, plan::Expand(plan.spec, std::move(layout)));
    lowered.candidates = std::move(plan.candidates);
    lowered.notes = std::move(plan.notes);
    for (const Dropped& one : dropped) lowered.notes.push_back(NoteOf(plan.spec, one));
    plan = std::move(lowered);
  }
  for (std::string& risk : RisksOf(plan, LossesOf(plan, limits)))
    plan.notes.push_back(std::move(risk));
  return plan;
}

}  // namespace phalanx::schedule

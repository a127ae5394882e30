#include "core/schedule/admission.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/schema.h"
#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/memory_fit.h"
#include "core/plan/moves.h"
#include "core/schedule/choice.h"

namespace phalanx::schedule {
namespace {

// Ranks over all losses that are looked at, so that a large plan takes no longer than a small one
// with as many.
constexpr int64_t kRanksMax = 1'000'000;

// One device of those whose loss comes to the same: ranks of the same stages of the same modules.
// Of large plans some of these, evenly.
std::vector<Rank> KindsOfDevices(const plan::Plan& plan) {
  std::map<std::vector<std::pair<int32_t, int32_t>>, Rank> kinds;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    std::vector<std::pair<int32_t, int32_t>> parts;  // module, pp
    for (const plan::Place& place : plan.PlacesOf(Rank{rank}))
      parts.emplace_back(place.module, place.pp);
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
};

// Steps that are lost at most where no home is left; -1: all.
int64_t StepsWithoutHomes(const plan::Plan& plan) {
  const int64_t every = plan.spec.checkpoint.has_value() ? plan.spec.checkpoint->every : 0;
  return every > 0 ? every : -1;
}

Loss LossOf(const plan::Plan& plan, Rank rank, absl::Span<const int64_t> device_memory) {
  Loss loss{.rank = rank};
  const auto costs = [&](std::string why) {
    loss.trouble = std::move(why);
    loss.steps = StepsWithoutHomes(plan);
    return loss;
  };
  const absl::StatusOr<plan::Plan> left = plan::PlanWithout(plan, {rank});
  if (!left.ok()) return costs(std::string(left.status().message()));
  std::vector<plan::MemoryEstimate> needs = plan::EstimateMemory(*left);
  for (plan::MemoryEstimate& need : needs) need.optimizer += kMoveBytes;
  if (const auto shortage = plan::MemoryShortage(needs, device_memory)) {
    loss.of_memory = true;
    return costs(*shortage);
  }
  const plan::Moves moves = plan::MovesBetween(plan, *left);
  if (std::any_of(moves.moves.begin(), moves.moves.end(), [](const plan::Move& move) {
        return move.source == plan::Move::Source::kCheckpoint;
      })) {
    loss.trouble = "a part of the optimizer state has no second home";
    loss.steps = moves.steps_lost >= plan.spec.steps ? -1 : moves.steps_lost;
  }
  return loss;
}

// Devices whose loss training does not survive where it stands, the dearest first.
std::vector<Loss> LossesOf(const plan::Plan& plan, absl::Span<const int64_t> device_memory) {
  std::vector<Loss> losses;
  for (const Rank rank : KindsOfDevices(plan)) {
    Loss loss = LossOf(plan, rank, device_memory);
    if (!loss.trouble.empty()) losses.push_back(std::move(loss));
  }
  std::stable_sort(losses.begin(), losses.end(), [](const Loss& a, const Loss& b) {
    return static_cast<uint64_t>(a.steps) > static_cast<uint64_t>(b.steps);
  });
  return losses;
}

// What a plan may be lowered to.
struct Lowering {
  int64_t micro = 0;                        // 0: as written
  bool host = false;                        // instead of mirrors
  std::optional<job::Recompute> recompute;  // at least
};

// As written first, then what costs least.
std::vector<Lowering> Lowerings(const job::JobSpec& spec) {
  std::vector<Lowering> all = {{}};
  for (int64_t micro = spec.batch.micro / 2; micro >= 1; micro /= 2)
    all.push_back({.micro = micro});
  const int64_t least = spec.batch.micro > 1 ? 1 : 0;
  if (spec.recovery.state_home == job::StateHome::kAuto) all.push_back({least, true, std::nullopt});
  for (const job::Recompute recompute : {job::Recompute::kSelective, job::Recompute::kFull}) {
    all.push_back({least, false, recompute});
    if (spec.recovery.state_home == job::StateHome::kAuto) all.push_back({least, true, recompute});
  }
  return all;
}

// The plan's layout, lowered. Nothing else of it is decided again.
absl::StatusOr<plan::Plan> Lowered(const job::JobSpec& spec, const plan::Plan& as_written,
                                   const Lowering& lowering) {
  plan::Layout layout = as_written.layout;
  layout.micro = lowering.micro;
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    plan::ModuleLayout& module = layout.modules[i];
    if (lowering.host && module.state_home == job::StateHome::kMirror) {
      module.state_home = job::StateHome::kHost;
      module.state_copies = std::min(module.state_copies, 2);
    }
    if (lowering.recompute.has_value() && spec.modules[i].recompute < *lowering.recompute)
      module.recompute = lowering.recompute;
  }
  return plan::Expand(spec, std::move(layout));
}

std::vector<std::string> NotesOf(const job::JobSpec& spec, const Lowering& lowering,
                                 absl::string_view why) {
  std::vector<std::string> notes;
  const auto add = [&](std::string what) { notes.push_back(absl::StrCat(what, ": ", why)); };
  if (lowering.micro > 0) {
    add(absl::StrCat("batch.micro is ", lowering.micro, " instead of ", spec.batch.micro));
  }
  if (lowering.host) add("optimizer state has its second home in host memory instead of mirrors");
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

// Nodes that have every home of some of a module's state, in the order of ranks.
std::vector<NodeName> NodesWithAllHomes(const plan::Plan& plan, const plan::ModulePlan& module) {
  const plan::ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module.index)];
  const bool trains = std::any_of(module.trains.begin(), module.trains.end(),
                                  [](const plan::Trains& part) { return part.weights; });
  std::vector<NodeName> nodes;
  if (!trains || layout.state_copies < 2) return nodes;
  const bool host = layout.state_home == job::StateHome::kHost;
  std::set<NodeName> seen;
  for (int32_t pp = 0; pp < module.pp(); ++pp) {
    for (const plan::RankList& group : plan.DataGroups(module.index, pp)) {
      const auto node_of = [&](Rank rank) -> const NodeName& {
        return plan.devices[static_cast<size_t>(rank.value)].node;
      };
      const bool together = std::all_of(group.begin(), group.end(), [&](Rank rank) {
        return node_of(rank) == node_of(group.front());
      });
      for (Rank rank : group) {
        if (!host && !together) break;
        if (seen.insert(node_of(rank)).second) nodes.push_back(node_of(rank));
      }
    }
  }
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

}  // namespace

absl::StatusOr<plan::Plan> AdmitJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                    absl::Span<const int64_t> device_memory, Epoch epoch) {
  ASSIGN_OR_RETURN(const plan::Plan as_written, PlanJob(spec, cluster, epoch));
  const absl::Status fits = plan::CheckMemory(as_written, device_memory);
  // Of those that fit the first under which the fewest losses are too much.
  std::optional<plan::Plan> best;
  size_t fewest = 0;
  std::string why;  // anything is lowered
  for (const Lowering& lowering : Lowerings(spec)) {
    absl::StatusOr<plan::Plan> plan = Lowered(spec, as_written, lowering);
    if (!plan.ok() || !plan::CheckMemory(*plan, device_memory).ok()) continue;
    const std::vector<Loss> losses = LossesOf(*plan, device_memory);
    // Nothing that is lowered gives state a second home, or a module another replica.
    const auto of_memory =
        std::find_if(losses.begin(), losses.end(), [](const Loss& loss) { return loss.of_memory; });
    if (why.empty() && !fits.ok()) why = "as written the job does not fit";
    if (why.empty() && of_memory != losses.end()) {
      why = absl::StrCat("without ", DeviceOf(*plan, of_memory->rank), ", ", of_memory->trouble);
    }
    if (!best.has_value() || losses.size() < fewest) {
      fewest = losses.size();
      plan->candidates = as_written.candidates;
      plan->notes = NotesOf(spec, lowering, why);
      if (!losses.empty()) plan->notes.push_back(CostOf(*plan, losses));
      for (std::string& note : NodeNotesOf(*plan)) plan->notes.push_back(std::move(note));
      best = *std::move(plan);
    }
    if (of_memory == losses.end()) break;
  }
  if (best.has_value()) return *std::move(best);
  return fits;
}

}  // namespace phalanx::schedule

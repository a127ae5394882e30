#include "core/plan/loss.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/plan/cost.h"
#include "core/plan/derivation.h"
#include "core/plan/replica_order.h"

namespace phalanx::plan {
namespace {

using Slot = std::pair<int32_t, int32_t>;  // dp, pp
using Changes = std::map<Slot, RankList>;

absl::Status CheckLost(const Plan& plan, absl::Span<const Rank> lost) {
  int64_t places = 0;
  for (const NodeDevices& node : plan.layout.nodes) {
    places += static_cast<int64_t>(node.devices.size());
  }
  const std::set<Rank> before(plan.layout.lost.begin(), plan.layout.lost.end());
  std::vector<Violation> violations;
  const auto refuse = [&](Rank rank, std::string rule) {
    violations.push_back({"lost", absl::StrCat(rank.value), std::move(rule)});
  };
  if (lost.empty()) violations.push_back({"lost", "", "must name a rank"});
  if (static_cast<int64_t>(lost.size()) > places) {
    return ViolationsStatus(
        {{"lost", absl::StrCat(lost.size(), " ranks"),
          absl::StrCat("must be no more than the places of the job, ", places)}});
  }
  std::set<Rank> seen;
  for (Rank rank : lost) {
    if (rank.value < 0 || rank.value >= places) {
      refuse(rank, absl::StrCat("must be a place of the job, below ", places));
    } else if (before.contains(rank)) {
      refuse(rank, "is lost already");
    } else if (!seen.insert(rank).second) {
      refuse(rank, "is named twice");
    }
  }
  return ViolationsStatus(violations);
}

// What one module loses and what is left of it: of the healthy module, since a rank that an earlier
// loss left idle may have work again once a later one is known.
class ModuleLoss {
 public:
  // `healthy`: its replicas without changes.
  ModuleLoss(const Plan& plan, int32_t module, ReplicaTable healthy)
      : plan_(plan), module_(module), table_(std::move(healthy)) {}

  // What has been lost in all.
  void Lose(const RankList& lost) {
    for (Rank rank : lost) {
      const std::optional<ReplicaTable::Position> position = table_.PositionOf(rank);
      if (position.has_value()) hit_[position->dp][position->pp].insert(rank);
    }
  }
  bool Has(Rank rank) const { return table_.PositionOf(rank).has_value(); }

  // Takes a rung for every hit replica.
  absl::Status Shrink();
  // The module's part of the next layout.
  absl::StatusOr<ModuleLayout> Finish() const;
  // Ranks that had work in it and may have none now.
  const std::set<Rank>& released() const { return released_; }
  absl::StatusOr<ReplicaTable> Table() const {
    return ReplicaTable::Create(plan_.modules[Index()].grid, ListOf(changes_));
  }

 private:
  using LostOfStages = std::map<int32_t, std::set<Rank>>;  // by pp

  size_t Index() const { return static_cast<size_t>(module_); }
  static std::vector<SlotChange> ListOf(const Changes& changes) {
    std::vector<SlotChange> list;
    for (const auto& [slot, ranks] : changes) list.push_back({slot.first, slot.second, ranks});
    return list;
  }
  // Of a stage of a replica, by cp coordinate; as many each as the one that is left with least.
  std::vector<RankList> Survivors(int32_t dp, int32_t pp, const std::set<Rank>& lost) const;
  absl::Status TakeRung(int32_t dp, const LostOfStages& stages);
  void Drop(int32_t dp, const LostOfStages& stages);
  // Sets the ranks of a slot, and keeps in mind who had work in it.
  void Narrow(Slot slot, const std::vector<RankList>& by_cp, int64_t width);
  // Every narrowed slot of a replica that is there becomes as narrow as the narrowest.
  void EvenOut();

  const Plan& plan_;
  const int32_t module_;
  const ReplicaTable table_;             // healthy
  std::map<int32_t, LostOfStages> hit_;  // by dp
  Changes changes_;
  std::set<Rank> released_;
};

std::vector<RankList> ModuleLoss::Survivors(int32_t dp, int32_t pp,
                                            const std::set<Rank>& lost) const {
  std::vector<RankList> by_cp;
  for (int32_t cp = 0; cp < table_.cp(); ++cp) {
    RankList ranks = table_.Ranks(dp, pp, cp);
    std::erase_if(ranks, [&lost](Rank rank) { return lost.contains(rank); });
    by_cp.push_back(std::move(ranks));
  }
  return by_cp;
}

void ModuleLoss::Narrow(Slot slot, const std::vector<RankList>& by_cp, int64_t width) {
  for (int32_t cp = 0; cp < table_.cp(); ++cp) {
    for (Rank rank : table_.Ranks(slot.first, slot.second, cp)) released_.insert(rank);
  }
  RankList& ranks = changes_[slot];
  ranks.clear();
  for (const RankList& list : by_cp) ranks.insert(ranks.end(), list.begin(), list.begin() + width);
}

void ModuleLoss::Drop(int32_t dp, const LostOfStages& stages) {
  for (int32_t pp = 0; pp < table_.stages(); ++pp) {
    for (int32_t cp = 0; cp < table_.cp(); ++cp) {
      for (Rank rank : table_.Ranks(dp, pp, cp)) released_.insert(rank);
    }
  }
  for (const auto& [pp, lost] : stages) changes_[{dp, pp}].clear();
}

absl::Status ModuleLoss::TakeRung(int32_t dp, const LostOfStages& stages) {
  std::map<int32_t, std::vector<RankList>> left;  // by pp
  bool may_shrink = true;
  for (const auto& [pp, lost] : stages) {
    left[pp] = Survivors(dp, pp, lost);
    for (const RankList& ranks : left[pp]) may_shrink &= !ranks.empty();
  }
  for (const job::Rung rung : plan_.spec.recovery.ladder) {
    if (rung == job::Rung::kShrink && may_shrink) {
      for (const auto& [pp, by_cp] : left) {
        size_t width = by_cp.front().size();
        for (const RankList& ranks : by_cp) width = std::min(width, ranks.size());
        Narrow({dp, pp}, by_cp, static_cast<int64_t>(width));
      }
      return absl::OkStatus();
    }
    if (rung == job::Rung::kDropReplica) {
      Drop(dp, stages);
      return absl::OkStatus();
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("recovery.ladder allows no rung for module ", plan_.module_spec(module_).name,
                   ", replica ", dp, may_shrink ? "" : ", a stage of which has no rank left"));
}

void ModuleLoss::EvenOut() {
  const int32_t healthy = plan_.module_spec(module_).parallel.tp, cp = table_.cp();
  std::set<int32_t> absent;
  for (const auto& [slot, ranks] : changes_) {
    if (ranks.empty()) absent.insert(slot.first);
  }
  int32_t narrowest = healthy;
  for (const auto& [slot, ranks] : changes_) {
    if (absent.contains(slot.first)) continue;
    narrowest = std::min(narrowest, static_cast<int32_t>(ranks.size()) / cp);
  }
  for (auto& [slot, ranks] : changes_) {
    const auto width = static_cast<int32_t>(ranks.size()) / cp;
    if (absent.contains(slot.first) || width <= narrowest) continue;
    std::vector<RankList> by_cp;
    for (auto first = ranks.begin(); first != ranks.end(); first += width) {
      by_cp.emplace_back(first, first + width);
    }
    for (Rank rank : ranks) released_.insert(rank);
    ranks.clear();
    for (const RankList& list : by_cp) {
      ranks.insert(ranks.end(), list.begin(), list.begin() + narrowest);
    }
  }
}

absl::Status ModuleLoss::Shrink() {
  for (const auto& [dp, stages] : hit_) RETURN_IF_ERROR(TakeRung(dp, stages));
  if (plan_.spec.recovery.widths == job::Widths::kParity) EvenOut();
  return absl::OkStatus();
}

absl::StatusOr<ModuleLayout> ModuleLoss::Finish() const {
  ModuleLayout layout = plan_.layout.modules[Index()];
  layout.changes = ListOf(changes_);
  ASSIGN_OR_RETURN(const ReplicaTable table, Table());
  if (table.present_replicas() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no replica of module ", plan_.module_spec(module_).name, " is left without these ranks"));
  }
  layout.speeds = SpeedsOf(plan_, module_, table);
  LowerHomes(plan_.spec.recovery, table.present_replicas(), &layout);
  layout.order = OrderAfter(plan_, module_, table);
  return layout;
}

// Relative time of one stage of a replica: of the rank that holds the largest share of each kind of
// units.
double TimeOf(const Plan& plan, int32_t module, int32_t pp, int32_t width) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const job::Architecture& architecture = plan.module_spec(module).architecture;
  if (!job::TraitsOf(architecture).known()) return 1.0 / width;
  const int64_t item = job::RowsOfItem(architecture);
  const auto rows = static_cast<double>(item > 0 ? item : architecture.context);
  double time = 0;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    time += PartCost(plan, {module, pp, chunk}, width, rows, rows).total();
  }
  return time;
}

}  // namespace

std::vector<int64_t> SpeedsOf(const Plan& plan, int32_t module, const ReplicaTable& replicas) {
  std::map<std::pair<int32_t, int32_t>, double> known;  // by pp, width
  const auto time_of = [&](int32_t dp) {
    double longest = 0;
    for (int32_t pp = 0; pp < replicas.stages(); ++pp) {
      const int32_t width = replicas.Width(dp, pp);
      const auto [time, first] = known.try_emplace({pp, width}, 0);
      if (first) time->second = TimeOf(plan, module, pp, width);
      longest = std::max(longest, time->second);
    }
    return longest;
  };
  std::vector<double> times;
  double shortest = 0;
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    times.push_back(replicas.Present(dp) ? time_of(dp) : 0);
    if (times.back() > 0 && (shortest == 0 || times.back() < shortest)) shortest = times.back();
  }
  std::vector<int64_t> speeds;
  for (const double time : times) {
    const double relative = time > 0 ? shortest / time : 0;
    speeds.push_back(std::llround(relative * static_cast<double>(kSpeedOfFastest)));
  }
  const bool alike = std::all_of(speeds.begin(), speeds.end(),
                                 [](int64_t speed) { return speed == kSpeedOfFastest; });
  return alike ? std::vector<int64_t>() : speeds;
}

absl::StatusOr<Layout> WithoutRanks(const Plan& plan, absl::Span<const Rank> lost) {
  RETURN_IF_ERROR(CheckLost(plan, lost));
  Layout layout = plan.layout;
  layout.epoch = Epoch{layout.epoch.value + 1};
  layout.derivation = kDerivation;
  layout.lost.insert(layout.lost.end(), lost.begin(), lost.end());
  std::sort(layout.lost.begin(), layout.lost.end());
  std::set<Rank> idle(layout.idle.begin(), layout.idle.end());
  std::vector<ReplicaTable> tables;
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    ASSIGN_OR_RETURN(ReplicaTable healthy, ReplicaTable::Create(plan.modules[m].grid, {}));
    ModuleLoss module(plan, static_cast<int32_t>(m), std::move(healthy));
    if (std::none_of(lost.begin(), lost.end(), [&](Rank rank) { return module.Has(rank); })) {
      tables.push_back(plan.modules[m].replicas);
      continue;
    }
    module.Lose(layout.lost);
    RETURN_IF_ERROR(module.Shrink());
    ASSIGN_OR_RETURN(layout.modules[m], module.Finish());
    idle.insert(module.released().begin(), module.released().end());
    ASSIGN_OR_RETURN(ReplicaTable table, module.Table());
    tables.push_back(std::move(table));
  }
  for (Rank rank : layout.lost) idle.erase(rank);
  std::erase_if(idle, [&tables](Rank rank) {
    return std::any_of(tables.begin(), tables.end(), [rank](const ReplicaTable& table) {
      return table.PositionOf(rank).has_value();
    });
  });
  layout.idle.assign(idle.begin(), idle.end());
  return layout;
}

absl::StatusOr<Plan> PlanWithout(const Plan& healthy, absl::Span<const Rank> lost) {
  ASSIGN_OR_RETURN(Layout layout, WithoutRanks(healthy, lost));
  layout.epoch = healthy.epoch();
  ASSIGN_OR_RETURN(Plan plan, Expand(healthy.spec, std::move(layout)));
  plan.candidates = healthy.candidates;
  plan.lowering_notes = healthy.lowering_notes;
  plan.notes = healthy.notes;
  plan.notes.resize(std::min(healthy.lowering_notes, healthy.notes.size()));
  return plan;
}

}  // namespace phalanx::plan

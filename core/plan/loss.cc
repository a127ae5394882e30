#include "core/plan/loss.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/derivation.h"
#include "core/plan/lowered.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/module_loss.h"
#include "core/plan/replica_order.h"
#include "core/plan/speeds.h"

namespace phalanx::plan {
namespace {

using job::Rung;

// Whether both would lead the same units, so that one may be a home of the other's state.
bool HaveOneStage(const Grid& grid, Rank a, Rank b) {
  if (!grid.Contains(a) || !grid.Contains(b)) return false;
  return grid.Coordinate(a, Axis::kPipeline) == grid.Coordinate(b, Axis::kPipeline) &&
         grid.Coordinate(a, Axis::kTensor) == grid.Coordinate(b, Axis::kTensor);
}

// Degrees that are tried at most.
constexpr int32_t kRestartsTried = 256;

class Successor {
 public:
  // `plan`: the running one, where no module has restarted, else WithoutRestarts. `running`: its
  // layout.
  Successor(const Plan& plan, const Layout& running, const Change& change, PartSizes& sizes)
      : plan_(plan),
        sizes_(sizes),
        restart_(change.restart),
        devices_(plan),
        lost_(running.lost.begin(), running.lost.end()),
        touched_(change.lost.begin(), change.lost.end()),
        idle_(running.idle.begin(), running.idle.end()),
        unfit_(change.unfit.begin(), change.unfit.end()),
        slow_(change.slow.value_or(running.slow)),
        slow_before_(running.slow) {
    // Whatever has no work in the running layout is looked at anew.
    if (HasRestarts(running)) touched_.insert(lost_.begin(), lost_.end());
    lost_.insert(change.lost.begin(), change.lost.end());
    for (const auto& [place, device] : change.returned) {
      lost_.erase(place);
      touched_.insert(place);
      fresh_.insert(place);
    }
    devices_.Return(change.returned);
    TakeRungs();
  }

  // Returns whether any device took over.
  bool TakeSpares();
  absl::StatusOr<NextLayout> Finish(const MemoryLimits& limits) const;

 private:
  // A replica that would rather have spares than the rung that it took.
  struct Wish {
    bool last = false;  // its module has no replica else
    size_t lacking = 0;
    size_t bare = 0;  // ranks that lack, or come without state
    int32_t module = 0, replica = 0;
    auto Key() const { return std::make_tuple(!last, lacking, bare, module, replica); }
  };

  const ModulePlan& ModuleAt(size_t m) const { return plan_.modules[m]; }
  const ReplicaTable& TableOf(size_t m) const {
    return losses_[m].has_value() ? losses_[m]->left() : ModuleAt(m).replicas;
  }
  // Of the places that are lost now.
  void TakeRungs();
  std::vector<Wish> Wishes() const;
  std::set<Rank> Idle() const;
  // Those that no module can use in their own places; those of no module first.
  RankList Spares() const;
  bool IsInNoModule(Rank place) const;
  // Takes what it uses from `spares`. Returns whether it uses any.
  bool Serve(const Wish& wish, RankList* spares);
  // To which width a replica that lacks ranks could come.
  int32_t WidthWith(const Wish& wish, const std::vector<SlotRanks>& slots, size_t spares) const;
  void TakeOver(Rank spare, Rank place);

  // Those that are slow now: on the devices on which they were found to be.
  SlowPlaces Slow() const;
  // Whether samples of the module may be dealt otherwise, since some place of it is or was slow.
  bool HasSlow(size_t m) const;
  // `slow`: those of the layout.
  absl::StatusOr<ModuleLayout> LayoutOf(size_t m, const SlowPlaces& slow) const;
  void AppendTaken(size_t m, const Layout& layout, std::vector<Taken>* taken) const;

  // Modules that restart, by index.
  using Restarts = std::map<size_t, LoweredGrid>;
  absl::StatusOr<Layout> LayoutWith(const Restarts& restarts) const;
  // Of the healthy grid of a module what is lost, or may not be used.
  std::set<Rank> GoneOf(size_t m) const;
  // The first degrees of `modules` that fit. Errors: FailedPrecondition where none do.
  absl::StatusOr<Layout> Restart(const std::vector<size_t>& modules,
                                 const MemoryLimits& limits) const;
  absl::Status Fits(const Layout& layout, const MemoryLimits& limits) const;

  const Plan& plan_;
  PartSizes& sizes_;
  const bool restart_;
  DevicesOfPlaces devices_;
  std::set<Rank> lost_;     // all that are lost in the end
  std::set<Rank> touched_;  // whose devices are others, have come or gone
  std::set<Rank> fresh_;    // that are there, on devices without state
  std::set<Rank> idle_;     // before
  std::set<Rank> unfit_;    // whose devices may not take over
  const SlowPlaces slow_, slow_before_;
  std::map<Rank, Device> spared_;
  std::vector<std::optional<ModuleLoss>> losses_;  // of modules that lack ranks or are touched
};

void Successor::TakeRungs() {
  losses_.clear();
  for (size_t m = 0; m < plan_.modules.size(); ++m) {
    const Grid& grid = ModuleAt(m).grid;
    const auto has_some_of = [&grid](const std::set<Rank>& places) {
      const auto first = places.lower_bound(Rank{grid.offset()});
      return first != places.end() && grid.Contains(*first);
    };
    losses_.emplace_back();
    if (has_some_of(touched_) || has_some_of(lost_))
      losses_.back().emplace(plan_, static_cast<int32_t>(m), lost_, restart_);
  }
}

std::set<Rank> Successor::Idle() const {
  std::set<Rank> idle = idle_;
  idle.insert(touched_.begin(), touched_.end());
  for (const std::optional<ModuleLoss>& loss : losses_) {
    if (loss.has_value()) idle.insert(loss->released().begin(), loss->released().end());
  }
  std::erase_if(idle, [this](Rank rank) {
    if (lost_.contains(rank)) return true;
    for (size_t m = 0; m < losses_.size(); ++m) {
      if (TableOf(m).PositionOf(rank).has_value()) return true;
    }
    return false;
  });
  return idle;
}

bool Successor::IsInNoModule(Rank place) const {
  return std::none_of(plan_.modules.begin(), plan_.modules.end(),
                      [place](const ModulePlan& module) { return module.grid.Contains(place); });
}

RankList Successor::Spares() const {
  RankList spares;
  for (Rank place : Idle()) {
    if (unfit_.contains(place)) continue;
    const bool is_claimed =
        std::any_of(plan_.modules.begin(), plan_.modules.end(), [&](const ModulePlan& module) {
          return module.grid.Contains(place) &&
                 TableOf(static_cast<size_t>(module.index))
                     .Present(module.grid.Coordinate(place, Axis::kData));
        });
    if (!is_claimed) spares.push_back(place);
  }
  std::stable_partition(spares.begin(), spares.end(),
                        [this](Rank place) { return IsInNoModule(place); });
  return spares;
}

std::vector<Successor::Wish> Successor::Wishes() const {
  const std::vector<Rung>& ladder = plan_.spec.recovery.ladder;
  if (std::find(ladder.begin(), ladder.end(), Rung::kSpare) == ladder.end()) return {};
  std::vector<Wish> wishes;
  for (size_t m = 0; m < losses_.size(); ++m) {
    if (!losses_[m].has_value()) continue;
    const bool last = losses_[m]->left().present_replicas() == 0;
    for (const auto& [dp, hit] : losses_[m]->hits()) {
      if (!last && !hit.sooner_spare) continue;
      Wish& wish = wishes.emplace_back();
      wish = {.last = last, .module = static_cast<int32_t>(m), .replica = dp};
      for (const SlotRanks& slot : losses_[m]->SlotsOf(dp, lost_)) {
        wish.lacking += slot.lost.size();
        wish.bare += slot.lost.size();
        for (Rank rank : slot.left)
          wish.bare += ModuleAt(m).replicas.PositionOf(rank).has_value() ? 0 : 1;
      }
    }
  }
  std::sort(wishes.begin(), wishes.end(),
            [](const Wish& a, const Wish& b) { return a.Key() < b.Key(); });
  return wishes;
}

bool Successor::TakeSpares() {
  const std::vector<Wish> wishes = Wishes();
  if (wishes.empty()) return false;
  RankList spares = Spares();
  bool any = false;
  for (const Wish& wish : wishes) {
    if (spares.empty()) break;
    if (!Serve(wish, &spares)) continue;
    any = true;
    if (wish.last) break;  // others of its module may want none now
    // Whose replicas may be there again.
    std::erase_if(spares, [this](Rank place) { return !IsInNoModule(place); });
  }
  if (any) TakeRungs();
  return any;
}

int32_t Successor::WidthWith(const Wish& wish, const std::vector<SlotRanks>& slots,
                             size_t spares) const {
  const auto m = static_cast<size_t>(wish.module);
  const job::Recovery& recovery = plan_.spec.recovery;
  const int32_t whole = plan_.parallel(wish.module).tp;
  int32_t least = 0;  // no less is worth a device
  if (recovery.widths == job::Widths::kParity && !wish.last) {
    least = whole;
    for (int32_t pp = 0; pp < TableOf(m).stages(); ++pp)
      least = std::min(least, TableOf(m).NarrowestOf(pp));
  }
  const bool may_shrink = std::find(recovery.ladder.begin(), recovery.ladder.end(),
                                    Rung::kShrink) != recovery.ladder.end();
  for (int32_t width = whole; width >= std::max(least, 1); --width) {
    size_t lacking = 0;
    for (const SlotRanks& slot : slots)
      lacking +=
          static_cast<size_t>(std::max<int64_t>(0, width - static_cast<int64_t>(slot.left.size())));
    if (lacking <= spares) return width;
    if (!may_shrink) break;
  }
  return 0;
}

bool Successor::Serve(const Wish& wish, RankList* spares) {
  const auto m = static_cast<size_t>(wish.module);
  const Grid& grid = ModuleAt(m).grid;
  // A replica's own devices stay where they are.
  const auto is_own = [&](Rank place) {
    return grid.Contains(place) && grid.Coordinate(place, Axis::kData) == wish.replica;
  };
  const auto own = std::count_if(spares->begin(), spares->end(), is_own);
  const std::vector<SlotRanks> slots = losses_[m]->SlotsOf(wish.replica, lost_);
  const int32_t width = WidthWith(wish, slots, spares->size() - static_cast<size_t>(own));
  bool any = false;
  for (const SlotRanks& slot : slots) {
    for (size_t i = 0; slot.left.size() + i < static_cast<size_t>(width); ++i) {
      const Rank place = slot.lost[i];
      const auto fitness = [&](Rank spare) {
        if (is_own(spare)) return -1;
        return (devices_.NodeOf(spare) == devices_.NodeOf(place) ? 2 : 0) +
               (HaveOneStage(grid, spare, place) ? 1 : 0);
      };
      const auto fittest = std::max_element(
          spares->begin(), spares->end(), [&](Rank a, Rank b) { return fitness(a) < fitness(b); });
      TakeOver(*fittest, place);
      spares->erase(fittest);
      any = true;
    }
  }
  return any;
}

void Successor::TakeOver(Rank spare, Rank place) {
  devices_.Swap(spare, place);
  lost_.erase(place);
  lost_.insert(spare);
  touched_.insert({spare, place});
  fresh_.insert(place);
  fresh_.erase(spare);
  spared_[place] = devices_.At(place);
}

SlowPlaces Successor::Slow() const {
  SlowPlaces slow = slow_;
  std::erase_if(slow, [this](const SlowPlace& one) {
    return lost_.contains(one.place) || fresh_.contains(one.place);
  });
  return slow;
}

bool Successor::HasSlow(size_t m) const {
  const auto is_in = [&](const SlowPlace& slow) { return ModuleAt(m).grid.Contains(slow.place); };
  return std::any_of(slow_.begin(), slow_.end(), is_in) ||
         std::any_of(slow_before_.begin(), slow_before_.end(), is_in);
}

absl::StatusOr<ModuleLayout> Successor::LayoutOf(size_t m, const SlowPlaces& slow) const {
  ModuleLayout layout = plan_.layout.modules[m];
  const auto module = static_cast<int32_t>(m);
  if (!losses_[m].has_value()) {
    if (HasSlow(m)) layout.speeds = SpeedsOf(plan_, module, ModuleAt(m).replicas, slow);
    return layout;
  }
  RETURN_IF_ERROR(losses_[m]->status());
  const ReplicaTable& left = losses_[m]->left();
  layout.changes = losses_[m]->changes();
  layout.speeds = SpeedsOf(plan_, module, left, slow);
  FitHomes(plan_.spec.recovery, left.present_replicas(), &layout);
  layout.order = OrderAfter(plan_, module, left, fresh_);
  return layout;
}

void Successor::AppendTaken(size_t m, const Layout& layout, std::vector<Taken>* taken) const {
  if (!losses_[m].has_value()) return;
  const Grid& grid = ModuleAt(m).grid;
  std::map<int32_t, std::string> spared;  // by dp
  for (const auto& [place, device] : spared_) {
    if (!grid.Contains(place)) continue;
    std::string& why = spared[grid.Coordinate(place, Axis::kData)];
    absl::StrAppend(&why, why.empty() ? "" : ", ", device.node, "/", device.index,
                    " takes over rank ", place.value);
  }
  const auto module = static_cast<int32_t>(m);
  for (auto& [dp, why] : spared) taken->push_back({module, dp, Rung::kSpare, std::move(why)});
  const std::optional<LoweredGrid>& lowered = layout.modules[m].lowered;
  for (const auto& [dp, hit] : losses_[m]->hits()) {
    if (!lowered.has_value()) {
      taken->push_back({module, dp, hit.rung, losses_[m]->WhyOf(dp)});
      continue;
    }
    taken->push_back({module, dp, Rung::kRestart,
                      absl::StrCat("the module goes on with tp ", lowered->tp, ", dp ", lowered->dp,
                                   ", pp ", lowered->pp)});
  }
}

absl::StatusOr<Layout> Successor::LayoutWith(const Restarts& restarts) const {
  Layout layout = plan_.layout;
  layout.epoch = Epoch{layout.epoch.value + 1};
  layout.derivation = std::max(layout.derivation, kOldestDerivation);
  layout.lost.assign(lost_.begin(), lost_.end());
  layout.slow = restarts.empty() ? Slow() : SlowPlaces();
  if (devices_.changed()) layout.nodes = devices_.ToPlacement();
  std::set<Rank> idle = Idle();
  for (size_t m = 0; m < losses_.size(); ++m) {
    const auto restarted = restarts.find(m);
    if (restarted == restarts.end()) {
      ASSIGN_OR_RETURN(layout.modules[m], LayoutOf(m, layout.slow));
      continue;
    }
    ModuleLayout& module = layout.modules[m];
    module.changes.clear();
    module.speeds.clear();
    module.order.clear();
    module.lowered = restarted->second;
    FitHomes(plan_.spec.recovery, module.lowered->dp, &module);
    for (Rank rank{ModuleAt(m).grid.offset()}; ModuleAt(m).grid.Contains(rank); ++rank.value)
      idle.insert(rank);
  }
  for (const auto& [m, lowered] : restarts) {
    for (const Rank rank : lowered.ranks) idle.erase(rank);
  }
  std::erase_if(idle, [&](Rank rank) {
    if (lost_.contains(rank)) return true;
    for (size_t m = 0; m < losses_.size(); ++m) {
      if (!restarts.contains(m) && TableOf(m).PositionOf(rank).has_value()) return true;
    }
    return false;
  });
  layout.idle.assign(idle.begin(), idle.end());
  return layout;
}

std::set<Rank> Successor::GoneOf(size_t m) const {
  const Grid& grid = ModuleAt(m).grid;
  std::set<Rank> gone;
  for (const std::set<Rank>* places : {&lost_, &unfit_}) {
    for (auto rank = places->lower_bound(Rank{grid.offset()});
         rank != places->end() && grid.Contains(*rank); ++rank)
      gone.insert(*rank);
  }
  return gone;
}

absl::Status Successor::Fits(const Layout& layout, const MemoryLimits& limits) const {
  ASSIGN_OR_RETURN(const Plan plan, Expand(plan_.spec, layout));
  if (!MayLack(plan, limits)) return absl::OkStatus();
  return CheckMemory(plan, EstimateMemory(plan, {}, sizes_), limits);
}

absl::StatusOr<Layout> Successor::Restart(const std::vector<size_t>& modules,
                                          const MemoryLimits& limits) const {
  std::vector<std::set<Rank>> gone;
  std::vector<std::vector<Degrees>> degrees;
  std::vector<size_t> tried(modules.size(), 0);  // of each module which of its degrees
  for (const size_t m : modules) {
    gone.push_back(GoneOf(m));
    const ReplicaTable& healthy = losses_[m]->healthy();
    const int64_t left = ModuleAt(m).grid.size() - static_cast<int64_t>(gone.back().size());
    degrees.push_back(LowerDegrees(healthy.degrees(), left));
    if (!degrees.back().empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("no replica of module ", plan_.module_spec(static_cast<int32_t>(m)).name,
                     " is left without these ranks"));
  }
  absl::Status first_misfit;
  for (int32_t count = 0; count < kRestartsTried; ++count) {
    Restarts restarts;
    for (size_t i = 0; i < modules.size(); ++i) {
      restarts[modules[i]] =
          LowerOnto(plan_, static_cast<int32_t>(modules[i]), degrees[i][tried[i]], gone[i]);
    }
    ASSIGN_OR_RETURN(Layout layout, LayoutWith(restarts));
    const absl::Status fits = Fits(layout, limits);
    if (fits.ok()) return layout;
    if (first_misfit.ok()) first_misfit = fits;
    // The last module's first, as on an odometer.
    size_t i = modules.size();
    while (i > 0 && ++tried[i - 1] == degrees[i - 1].size()) tried[--i] = 0;
    if (i == 0) break;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no lower degrees fit what is left: ", first_misfit.message()));
}

absl::StatusOr<NextLayout> Successor::Finish(const MemoryLimits& limits) const {
  std::vector<size_t> must, may;
  for (size_t m = 0; m < losses_.size(); ++m) {
    if (!losses_[m].has_value()) continue;
    if (losses_[m]->MustRestart()) must.push_back(m);
    if (losses_[m]->MayRestart()) may.push_back(m);
  }
  const auto next_with = [this](Layout layout) {
    NextLayout next{.layout = std::move(layout)};
    for (size_t m = 0; m < losses_.size(); ++m) AppendTaken(m, next.layout, &next.taken);
    std::sort(next.taken.begin(), next.taken.end(), [](const Taken& a, const Taken& b) {
      return std::tie(a.module, a.replica, a.rung) < std::tie(b.module, b.replica, b.rung);
    });
    return next;
  };
  if (must.empty()) {
    ASSIGN_OR_RETURN(Layout layout, LayoutWith({}));
    const bool unlimited = limits.devices.empty() && limits.nodes.empty();
    if (may.empty() || unlimited || Fits(layout, limits).ok()) return next_with(std::move(layout));
    absl::StatusOr<Layout> lowered = Restart(may, limits);
    // Else the caller sees what does not fit.
    return next_with(lowered.ok() ? *std::move(lowered) : std::move(layout));
  }
  absl::StatusOr<Layout> lowered = Restart(must, limits);
  if (!lowered.ok() && may.size() > must.size()) lowered = Restart(may, limits);
  if (!lowered.ok()) return lowered.status();
  return next_with(*std::move(lowered));
}

}  // namespace

absl::StatusOr<NextLayout> LayoutAfter(const Plan& running, const Change& change,
                                       const MemoryLimits& limits, PartSizes* sizes) {
  RETURN_IF_ERROR(CheckChange(running, change));
  std::optional<Plan> healthy;
  if (HasRestarts(running.layout)) {
    if (change.slow.has_value() && !change.slow->empty()) {
      return absl::FailedPreconditionError(
          "a module has restarted with lower degrees, so samples are dealt evenly");
    }
    ASSIGN_OR_RETURN(healthy, WithoutRestarts(running));
  }
  PartSizes own;
  Successor next(healthy.has_value() ? *healthy : running, running.layout, change,
                 sizes == nullptr ? own : *sizes);
  if (change.spares) {
    while (next.TakeSpares()) continue;
  }
  return next.Finish(limits);
}

absl::StatusOr<Plan> PlanWithout(const Plan& healthy, absl::Span<const Rank> lost,
                                 const MemoryLimits& limits) {
  return PlanAfter(healthy, {.lost = {lost.begin(), lost.end()}, .spares = false}, limits);
}

absl::StatusOr<Plan> PlanAfter(const Plan& running, const Change& change,
                               const MemoryLimits& limits, PartSizes* sizes) {
  ASSIGN_OR_RETURN(NextLayout next, LayoutAfter(running, change, limits, sizes));
  next.layout.epoch = running.epoch();
  ASSIGN_OR_RETURN(Plan plan, Expand(running.spec, std::move(next.layout)));
  plan.candidates = running.candidates;
  plan.lowering_notes = running.lowering_notes;
  plan.notes = running.notes;
  plan.notes.resize(std::min(running.lowering_notes, running.notes.size()));
  return plan;
}

}  // namespace phalanx::plan

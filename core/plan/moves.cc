#include "core/plan/moves.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/plan/check.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/ruler_map.h"
#include "core/plan/safe_again.h"
#include "core/plan/shares.h"
#include "core/plan/state_table.h"

namespace phalanx::plan {
namespace {

// Where the devices of places of one plan are in the next one.
class Whereabouts {
 public:
  Whereabouts(const Plan& before, const Plan& after)
      : lost_(after.layout.lost.begin(), after.layout.lost.end()) {
    if (before.layout.nodes == after.layout.nodes) return;
    const std::vector<Device> old = ClusterOf(before.layout.nodes).devices;
    const std::vector<Device> now = ClusterOf(after.layout.nodes).devices;
    std::map<std::pair<NodeName, int32_t>, Rank> place_of;  // of those that changed hands
    for (size_t i = 0; i < old.size(); ++i) {
      const Rank place{static_cast<int32_t>(i)};
      if (old[i] == now[i]) continue;
      moved_.try_emplace(place);
      if (!lost_.contains(place)) place_of[{now[i].node, now[i].index}] = place;
    }
    for (auto& [place, to] : moved_) {
      const Device& device = old[static_cast<size_t>(place.value)];
      const auto found = place_of.find({device.node, device.index});
      if (found != place_of.end()) to = found->second;
    }
  }

  // nullopt: the device is gone.
  std::optional<Rank> Of(Rank place) const {
    const auto moved = moved_.find(place);
    if (moved != moved_.end()) return moved->second;
    if (lost_.contains(place)) return std::nullopt;
    return place;
  }
  // Whether some rank of a stage is on another device.
  bool ChangeIn(const ReplicaTable& replicas, int32_t pp) const {
    return std::any_of(moved_.begin(), moved_.end(), [&](const auto& moved) {
      const std::optional<ReplicaTable::Position> at = replicas.PositionOf(moved.first);
      return at.has_value() && at->pp == pp;
    });
  }

 private:
  const std::set<Rank> lost_;
  std::map<Rank, std::optional<Rank>> moved_;  // places on other devices: where theirs are
};

// Whether the homes of a stage's state may be others.
bool Changes(const Plan& before, const Plan& after, const Whereabouts& whereabouts, int32_t module,
             int32_t pp) {
  if (whereabouts.ChangeIn(after.replicas(module), pp)) return true;
  const auto m = static_cast<size_t>(module);
  const ModuleLayout &a = before.layout.modules[m], &b = after.layout.modules[m];
  if (a.state_home != b.state_home || a.state_copies != b.state_copies) return true;
  if (a.lowered != b.lowered) return true;
  const auto changes_of = [pp](const ModuleLayout& layout) {
    std::vector<SlotChange> changes;
    std::copy_if(layout.changes.begin(), layout.changes.end(), std::back_inserter(changes),
                 [pp](const SlotChange& change) { return change.pp == pp; });
    return changes;
  };
  if (changes_of(a) != changes_of(b)) return true;
  return before.replicas(module).order() != after.replicas(module).order();
}

class Mover {
 public:
  Mover(const Plan& before, const Plan& after, const Whereabouts& whereabouts)
      : before_(before),
        after_(after),
        whereabouts_(whereabouts),
        element_bytes_(StateBytes(before.spec.compute)),
        host_(CopiesToHost(before)) {}

  void Add(const PartId& part) { Add(part, StateTableOf(before_, part)); }

  // `from`: of the state before, on the rulers of the part.
  void Add(const PartId& part, const StateTable& from) {
    const StateTable to = StateTableOf(after_, part);
    PHALANX_CHECK(from.rulers.size() == to.rulers.size(), "both layouts have the same rulers");
    for (size_t i = 0; i < from.rulers.size(); ++i) AddRuler(part, from, to, i);
  }

  Moves Finish() && {
    moves_.steps_lost = StepsLost();
    moves_.safe_again_steps = SafeAgainSteps();
    return std::move(moves_);
  }

 private:
  void AddRuler(const PartId& part, const StateTable& from, const StateTable& to, size_t ruler) {
    auto old = from.rulers[ruler].runs.begin();
    // Where the last run of moves to each of the new homes stands, so that neighbours join it.
    std::vector<size_t> last, next;
    RankList left;  // of the homes that elements had, as they are now
    for (const HomedRun& run : to.rulers[ruler].runs) {
      for (int64_t at = run.elements.first; at < run.elements.end();) {
        while (old->elements.end() <= at) ++old;
        const int64_t end = std::min(run.elements.end(), old->elements.end());
        const RankList& had = from.homes[static_cast<size_t>(old->homes)];
        left.clear();
        for (Rank home : had) {
          if (const std::optional<Rank> now = whereabouts_.Of(home)) left.push_back(*now);
        }
        next.clear();
        const RankList& homes = to.homes[static_cast<size_t>(run.homes)];
        for (Rank home : homes) {
          if (std::find(left.begin(), left.end(), home) != left.end()) continue;
          if (home != homes.front()) mirrors_lack_ += end - at;
          Move move{.part = part,
                    .bucket = to.rulers[ruler].bucket,
                    .family = to.rulers[ruler].family,
                    .elements = {at, end - at},
                    .to = home,
                    .from_stage = before_.replicas(part.module).PositionOf(had.front())->pp};
          SetSource(had.front(), left, &move);
          next.push_back(Join(move, last));
        }
        std::swap(last, next);
        at = end;
      }
    }
  }

  void SetSource(Rank primary, const RankList& left, Move* move) {
    if (!left.empty()) {
      move->from = left.front();
    } else if (host_) {
      move->source = Move::Source::kHost;
      move->from = primary;
      needs_host_ = true;
    } else {
      move->source = Move::Source::kCheckpoint;
      needs_checkpoint_ = true;
    }
  }

  // Index of the move that has these elements now.
  size_t Join(const Move& move, const std::vector<size_t>& last) {
    moves_.bytes += move.elements.count * element_bytes_;
    for (const size_t i : last) {
      Move& before = moves_.moves[i];
      if (before.elements.end() != move.elements.first || before.from != move.from ||
          before.to != move.to || before.source != move.source ||
          before.from_stage != move.from_stage) {
        continue;
      }
      before.elements.count += move.elements.count;
      return i;
    }
    moves_.moves.push_back(move);
    return moves_.moves.size() - 1;
  }

  int64_t StepsLost() const {
    const job::JobSpec& spec = before_.spec;
    if (!needs_host_ && !needs_checkpoint_) return 0;
    const int64_t every = spec.checkpoint.has_value() ? spec.checkpoint->every : 0;
    const int64_t of_checkpoint = every > 0 ? every : spec.steps;
    // The step of a copy's end is under way, or its decision not known to all.
    return needs_checkpoint_ ? of_checkpoint
                             : std::min<int64_t>(spec.recovery.state_every + 1, of_checkpoint);
  }

  int64_t SafeAgainSteps() const {
    int64_t steps = mirrors_lack_ > kMirrorsAtOnceMax ? kMirrorStepsMax : 0;
    // A step that is copied, and the one in which the copy gets there.
    if (CopiesToHost(after_))
      steps = std::max<int64_t>(steps, after_.spec.recovery.state_every + 1);
    return steps;
  }

  const Plan &before_, &after_;
  const Whereabouts& whereabouts_;
  const int64_t element_bytes_;
  const bool host_;
  bool needs_host_ = false, needs_checkpoint_ = false;
  int64_t mirrors_lack_ = 0;  // elements
  Moves moves_;
};

}  // namespace

Moves MovesBetween(const Plan& before, const Plan& after) {
  const Whereabouts whereabouts(before, after);
  Mover mover(before, after, whereabouts);
  for (const ModulePlan& module : after.modules) {
    if (!job::TraitsOf(after.module_spec(module.index).architecture).known()) continue;
    if (!SameRulers(before, after, module.index)) {
      for (const auto& [part, table] : StateTablesOn(after, before, module.index))
        mover.Add(part, table);
      continue;
    }
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      if (!Changes(before, after, whereabouts, module.index, stage)) continue;
      for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
        if (module.TrainsOf(stage, chunk).weights) mover.Add({module.index, stage, chunk});
      }
    }
  }
  return std::move(mover).Finish();
}

}  // namespace phalanx::plan

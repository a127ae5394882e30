#include "core/plan/moves.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/plan/check.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/shares.h"
#include "core/plan/state_table.h"

namespace phalanx::plan {
namespace {

// Whether the homes of a stage's state may be others.
bool Changes(const Plan& before, const Plan& after, int32_t module, int32_t pp) {
  const auto m = static_cast<size_t>(module);
  const ModuleLayout &a = before.layout.modules[m], &b = after.layout.modules[m];
  if (a.state_home != b.state_home || a.state_copies != b.state_copies) return true;
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
  Mover(const Plan& before, const Plan& after)
      : before_(before),
        after_(after),
        lost_(after.layout.lost.begin(), after.layout.lost.end()),
        element_bytes_(StateBytes(before.spec.compute)),
        host_(CopiesToHost(before)) {}

  void Add(const PartId& part) {
    const StateTable from = StateTableOf(before_, part), to = StateTableOf(after_, part);
    PHALANX_CHECK(from.rulers.size() == to.rulers.size(), "both layouts have the same rulers");
    for (size_t i = 0; i < from.rulers.size(); ++i) AddRuler(part, from, to, i);
  }

  Moves Finish() && {
    moves_.steps_lost = StepsLost();
    return std::move(moves_);
  }

 private:
  void AddRuler(const PartId& part, const StateTable& from, const StateTable& to, size_t ruler) {
    auto old = from.rulers[ruler].runs.begin();
    // Where the last run of moves to each of the new homes stands, so that neighbours join it.
    std::vector<size_t> last, next;
    for (const HomedRun& run : to.rulers[ruler].runs) {
      for (int64_t at = run.elements.first; at < run.elements.end();) {
        while (old->elements.end() <= at) ++old;
        const int64_t end = std::min(run.elements.end(), old->elements.end());
        const RankList& had = from.homes[static_cast<size_t>(old->homes)];
        next.clear();
        for (Rank home : to.homes[static_cast<size_t>(run.homes)]) {
          if (std::find(had.begin(), had.end(), home) != had.end()) continue;
          Move move{.part = part,
                    .bucket = to.rulers[ruler].bucket,
                    .family = to.rulers[ruler].family,
                    .elements = {at, end - at},
                    .to = home};
          SetSource(had, &move);
          next.push_back(Join(move, last));
        }
        std::swap(last, next);
        at = end;
      }
    }
  }

  void SetSource(const RankList& had, Move* move) {
    const auto left =
        std::find_if(had.begin(), had.end(), [&](Rank home) { return !lost_.contains(home); });
    if (left != had.end()) {
      move->from = *left;
    } else if (host_) {
      move->source = Move::Source::kHost;
      move->from = had.front();
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
          before.to != move.to || before.source != move.source) {
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
    return needs_checkpoint_ ? of_checkpoint
                             : std::min<int64_t>(spec.recovery.state_every, of_checkpoint);
  }

  const Plan &before_, &after_;
  const std::set<Rank> lost_;
  const int64_t element_bytes_;
  const bool host_;
  bool needs_host_ = false, needs_checkpoint_ = false;
  Moves moves_;
};

}  // namespace

Moves MovesBetween(const Plan& before, const Plan& after) {
  Mover mover(before, after);
  for (const ModulePlan& module : after.modules) {
    if (!job::TraitsOf(after.module_spec(module.index).architecture).known()) continue;
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      if (!Changes(before, after, module.index, stage)) continue;
      for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
        if (module.TrainsOf(stage, chunk).weights) mover.Add({module.index, stage, chunk});
      }
    }
  }
  return std::move(mover).Finish();
}

}  // namespace phalanx::plan

#include "worker/train/holdings.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "core/job/family.h"
#include "core/plan/state_table.h"

namespace phalanx::train {
namespace {

// A run of a flat buffer that is one of a ruler: what one unit has of one matrix.
struct Slab {
  plan::UnitFamily family;
  int64_t ruler_first = 0, offset = 0, count = 0;
};

// By offset.
std::vector<Slab> SlabsOf(const plan::BucketRulers& rulers) {
  std::vector<Slab> slabs;
  std::map<plan::UnitFamily, int64_t> before;  // elements of a unit in matrices before this one
  for (const plan::LedSlabs& led : rulers.slabs) {
    const plan::FamilyRuler& ruler = *rulers.Find(led.family);
    const int64_t begin = std::exchange(before[led.family], before[led.family] + led.elements);
    for (int64_t unit = led.units.first; unit < led.units.end(); ++unit) {
      slabs.push_back({.family = led.family,
                       .ruler_first = unit * ruler.unit_elements + begin,
                       .offset = led.offset + (unit - led.units.first) * led.elements,
                       .count = led.elements});
    }
  }
  std::sort(slabs.begin(), slabs.end(),
            [](const Slab& a, const Slab& b) { return a.offset < b.offset; });
  return slabs;
}

std::vector<plan::PartId> PartsOf(const plan::ModulePlan& module) {
  std::vector<plan::PartId> parts;
  for (int32_t stage = 0; stage < module.pp(); ++stage) {
    for (int32_t chunk = 0; chunk < module.chunks(); ++chunk)
      parts.push_back({module.index, stage, chunk});
  }
  return parts;
}

void AddState(const plan::Plan& plan, const plan::PartId& part,
              std::map<Rank, Holdings>* holdings) {
  const plan::StateTable table = plan::StateTableOf(plan, part);
  for (const plan::HomedRuler& ruler : table.rulers) {
    for (const plan::HomedRun& run : ruler.runs) {
      for (const Rank home : table.homes[static_cast<size_t>(run.homes)]) {
        const auto held = holdings->find(home);
        if (held != holdings->end())
          held->second.state[{part, ruler.bucket, ruler.family}].push_back(run.elements);
      }
    }
  }
}

}  // namespace

std::vector<RulerRun> RulerRunsOf(const plan::BucketRulers& rulers, const StateBlock& block) {
  const std::vector<Slab> slabs = SlabsOf(rulers);
  std::vector<RulerRun> runs;
  for (const StateRun& run : block.runs) {
    const int64_t end = run.gradient_offset + run.count;
    auto slab = std::upper_bound(
        slabs.begin(), slabs.end(), run.gradient_offset,
        [](int64_t value, const Slab& each) { return value < each.offset + each.count; });
    for (; slab != slabs.end() && slab->offset < end; ++slab) {
      const int64_t first = std::max(slab->offset, run.gradient_offset);
      const int64_t count = std::min(slab->offset + slab->count, end) - first;
      runs.push_back({.family = slab->family,
                      .elements = {slab->ruler_first + first - slab->offset, count},
                      .state_offset = run.state_offset + first - run.gradient_offset});
    }
  }
  SortAndJoin(&runs);
  return runs;
}

std::vector<RulerRun> Without(const std::vector<RulerRun>& runs,
                              const std::vector<plan::UnitRange>& lacking) {
  if (lacking.empty()) return runs;
  std::vector<RulerRun> left;
  for (const RulerRun& run : runs) {
    const int64_t end = run.state_offset + run.elements.count;
    int64_t at = run.state_offset;
    const auto keep = [&](int64_t until) {
      if (until <= at) return;
      left.push_back({.family = run.family,
                      .elements = {run.elements.first + at - run.state_offset, until - at},
                      .state_offset = at});
    };
    for (const plan::UnitRange& range : lacking) {
      if (range.end() <= at || range.first >= end) continue;
      keep(range.first);
      at = range.end();
    }
    keep(end);
  }
  return left;
}

void SortAndJoin(std::vector<RulerRun>* all) {
  std::vector<RulerRun>& runs = *all;
  std::sort(runs.begin(), runs.end(), [](const RulerRun& a, const RulerRun& b) {
    return std::tie(a.family, a.elements.first) < std::tie(b.family, b.elements.first);
  });
  size_t kept = 0;
  for (const RulerRun& run : runs) {
    RulerRun* last = kept == 0 ? nullptr : &runs[kept - 1];
    if (last != nullptr && last->family == run.family &&
        last->elements.end() == run.elements.first &&
        last->state_offset + last->elements.count == run.state_offset) {
      last->elements.count += run.elements.count;
    } else {
      runs[kept++] = run;
    }
  }
  runs.resize(kept);
}

void FillHoldings(const plan::Plan& plan, int64_t step, std::map<Rank, Holdings>* holdings) {
  for (auto& [rank, held] : *holdings) held.step = step;
  std::map<FrozenName, bool> has_frozen;
  for (const plan::ModulePlan& module : plan.modules) {
    if (!job::TraitsOf(plan.module_spec(module.index).architecture).known()) continue;
    for (const plan::PartId& part : PartsOf(module)) {
      if (module.TrainsOf(part.stage, part.chunk).weights) AddState(plan, part, holdings);
      for (auto& [rank, held] : *holdings) {
        const std::optional<plan::Place> place = plan.PlaceOf(rank, module.index);
        if (!place.has_value() || place->pp != part.stage) continue;
        const FrozenName name{part, place->width, place->tp};
        const auto [known, is_new] = has_frozen.try_emplace(name, false);
        if (is_new) {
          const plan::StageParameters parameters = plan::ParametersOf(plan, *place, part.chunk);
          known->second = parameters.elements != parameters.trained_extent;
        }
        if (known->second) held.frozen.push_back(name);
      }
    }
  }
  for (auto& [rank, held] : *holdings) {
    std::sort(held.frozen.begin(), held.frozen.end());
    for (auto& [name, ranges] : held.state) SortAndJoin(&ranges);
  }
}

void SortAndJoin(std::vector<plan::UnitRange>* ranges) {
  std::sort(ranges->begin(), ranges->end(),
            [](const plan::UnitRange& a, const plan::UnitRange& b) { return a.first < b.first; });
  size_t kept = 0;
  for (const plan::UnitRange& range : *ranges) {
    if (range.count == 0) continue;
    if (kept > 0 && (*ranges)[kept - 1].end() >= range.first) {
      plan::UnitRange& last = (*ranges)[kept - 1];
      last.count = std::max(last.end(), range.end()) - last.first;
    } else {
      (*ranges)[kept++] = range;
    }
  }
  ranges->resize(kept);
}

FrozenRows FrozenRowsOf(const plan::StageParameters& parameters) {
  FrozenRows rows;
  for (const plan::LocalMatrix& matrix : parameters.matrices) {
    if (matrix.offset < parameters.trained_extent) continue;
    for (const plan::Piece& piece : matrix.pieces) {
      rows[parameters.logical[static_cast<size_t>(piece.logical)].name].push_back(
          {.rows = {piece.logical_row, piece.rows},
           .offset = matrix.offset + piece.local_row * matrix.cols,
           .cols = matrix.cols});
    }
  }
  return rows;
}

}  // namespace phalanx::train

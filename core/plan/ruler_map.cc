#include "core/plan/ruler_map.h"

#include <algorithm>
#include <utility>

#include "core/plan/check.h"

namespace phalanx::plan {

bool SameRulers(const Plan& a, const Plan& b, int32_t module) {
  const ModulePlan& one = a.modules[static_cast<size_t>(module)];
  const ModulePlan& other = b.modules[static_cast<size_t>(module)];
  return one.order == other.order && one.stage_layers == other.stage_layers;
}

bool SameRulers(const Plan& a, const Plan& b) {
  return std::all_of(a.modules.begin(), a.modules.end(),
                     [&](const ModulePlan& module) { return SameRulers(a, b, module.index); });
}

RulerMap::Rulers RulerMap::RulersOfModule(const Plan& plan, int32_t module) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const ReplicaTable& table = layout.replicas;
  Rulers rulers;
  for (int32_t stage = 0; stage < layout.pp(); ++stage) {
    for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      Place place{.module = module, .dp = table.FirstPresent(), .pp = stage};
      place.width = table.Width(place.dp, place.pp);
      const StageParameters parameters = ParametersOf(plan, place, chunk);
      const std::vector<BucketRulers> buckets = RulersOf(plan, place, parameters);
      for (size_t b = 0; b < buckets.size(); ++b) {
        std::map<UnitFamily, int32_t> ordinal;  // in the matrix at hand
        int32_t matrix = -1;
        for (const LedSlabs& led : buckets[b].slabs) {
          if (std::exchange(matrix, led.matrix) != led.matrix) ordinal.clear();
          const LocalMatrix& of = parameters.matrices[static_cast<size_t>(led.matrix)];
          Ruler& ruler = rulers[{{module, stage, chunk}, static_cast<int32_t>(b), led.family}];
          ruler.slabs.push_back(
              {.id = {of.role, of.layer, of.edge, led.family, ordinal[led.family]++},
               .begin = ruler.unit_elements,
               .elements = led.elements});
          ruler.unit_elements += led.elements;
        }
      }
    }
  }
  return rulers;
}

RulerMap::RulerMap(const Plan& from, const Plan& to, int32_t module)
    : from_(RulersOfModule(from, module)) {
  for (const auto& [id, ruler] : RulersOfModule(to, module)) {
    for (const Slab& slab : ruler.slabs)
      to_[slab.id] = {.ruler = id, .unit_elements = ruler.unit_elements, .begin = slab.begin};
  }
}

std::vector<RulerMap::Piece> RulerMap::Of(const RulerId& id, const UnitRange& elements) const {
  const auto found = from_.find(id);
  PHALANX_CHECK(found != from_.end(), "a ruler of the layout that state comes from");
  const Ruler& ruler = found->second;
  std::vector<Piece> pieces;
  for (int64_t at = elements.first; at < elements.end();) {
    const int64_t unit = at / ruler.unit_elements, in_unit = at % ruler.unit_elements;
    const auto slab = std::find_if(ruler.slabs.begin(), ruler.slabs.end(),
                                   [in_unit](const Slab& each) { return in_unit < each.end(); });
    const int64_t count = std::min(slab->end() - in_unit, elements.end() - at);
    const auto target = to_.find(slab->id);
    PHALANX_CHECK(target != to_.end(), "both layouts have the same matrices");
    const Target& to = target->second;
    const int64_t first = unit * to.unit_elements + to.begin + in_unit - slab->begin;
    Piece* last = pieces.empty() ? nullptr : &pieces.back();
    if (last != nullptr && last->ruler == to.ruler && last->elements.end() == first) {
      last->elements.count += count;
    } else {
      pieces.push_back({.from = at, .ruler = to.ruler, .elements = {first, count}});
    }
    at += count;
  }
  return pieces;
}

}  // namespace phalanx::plan

// core/plan/ruler_map.h: places on rulers under layouts that cut a module into other stages.
//
// A ruler (ruler.h) counts the elements of the matrices of one bucket. Under another cut into
// stages the same matrices are in other buckets of other parts, and each element is somewhere else.
// What does not change is its matrix, its unit there and its place in the unit: over these, runs of
// a ruler of one layout are found on those of another.
//
// Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/units.h"

namespace phalanx::plan {

// Whether a module has the same rulers in both plans of a job: it is cut alike.
bool SameRulers(const Plan& a, const Plan& b, int32_t module);
// Of all modules.
bool SameRulers(const Plan& a, const Plan& b);

// One ruler of one bucket of a pipeline part.
struct RulerId {
  PartId part;
  int32_t bucket = 0;
  UnitFamily family;
  friend auto operator<=>(const RulerId&, const RulerId&) = default;
};

// Immutable; safe to read from any thread.
class RulerMap {
 public:
  // Between the rulers of a module, whose family is known, in two plans of a job.
  RulerMap(const Plan& from, const Plan& to, int32_t module);

  // A run of a ruler of `from` that is one of `to`.
  struct Piece {
    int64_t from = 0;  // its first element
    RulerId ruler;     // of `to`
    UnitRange elements;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  // All of `elements`, which must be of a ruler of `from`, ascending; neighbours joined.
  std::vector<Piece> Of(const RulerId& ruler, const UnitRange& elements) const;

 private:
  // What one unit has of one matrix: queries, keys and values are one each.
  struct SlabId {
    MatrixRole role = MatrixRole::kEmbedding;
    int32_t layer = -1, edge = -1;
    UnitFamily family;
    int32_t ordinal = 0;  // of those of its family in the matrix
    friend auto operator<=>(const SlabId&, const SlabId&) = default;
  };
  struct Slab {
    SlabId id;
    int64_t begin = 0, elements = 0;  // in the unit, on its ruler
    int64_t end() const { return begin + elements; }
  };
  struct Ruler {
    int64_t unit_elements = 0;
    std::vector<Slab> slabs;  // by begin
  };
  using Rulers = std::map<RulerId, Ruler>;
  static Rulers RulersOfModule(const Plan& plan, int32_t module);

  struct Target {
    RulerId ruler;
    int64_t unit_elements = 0, begin = 0;
  };

  const Rulers from_;
  std::map<SlabId, Target> to_;
};

}  // namespace phalanx::plan

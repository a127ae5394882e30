// core/plan/ruler.h: the units of a bucket on a line that is the same for every width.
//
// A *unit family* is what a unit is one of: query heads, KV heads, blocks of the MLP or of an
// edge's projector, blocks of vocabulary; everything that all tensor ranks have is one unit of a
// family of its own. A *slab* is what one unit has of one matrix: a run of whole rows, since
// matrices are stored so (parameters.h).
//
// The *ruler* of a family in a bucket counts the elements of all its matrices there: unit after
// unit, in a unit slab after slab in storage order (keys before values), in a slab as stored.
// Padding rows of a last block are elements like others, so that all units are equally long. A tied
// head is on no ruler: its embedding leads it (copies.h).
//
// A rank leads a run of units, whatever its width. So who holds what, shares and exchanges between
// ranks of unequal width are intervals of rulers, of which an interval is a few runs of the flat
// buffers of each rank that leads it.
//
// Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"

namespace phalanx::plan {

// Their numbers go between ranks: what is new comes behind kReplicated, and is counted.
enum class UnitKind : uint8_t { kAttention, kKv, kMlp, kVocabulary, kReplicated };
inline constexpr int64_t kUnitKinds = 5;

struct UnitFamily {
  UnitKind kind = UnitKind::kReplicated;
  int32_t edge = -1;  // kMlp: of the blocks of that edge's projector
  friend auto operator<=>(const UnitFamily&, const UnitFamily&) = default;
};

// What the tensor rank at a place has of a family: what it holds, and what it leads (the first rank
// that holds a KV head does; of what is replicated the first rank).
UnitRange HeldUnits(const Plan& plan, const Place& place, const UnitFamily& family);
UnitRange LedUnits(const Plan& plan, const Place& place, const UnitFamily& family);
// The tensor rank that leads a unit in replicas of `width`.
int32_t LeaderOf(const Plan& plan, int32_t module, int32_t width, const UnitFamily& family,
                 int64_t unit);

struct FamilyRuler {
  UnitFamily family;
  int64_t units = 0;          // of the family
  int64_t unit_elements = 0;  // of a unit, in the bucket
  int64_t elements() const { return units * unit_elements; }
  friend bool operator==(const FamilyRuler&, const FamilyRuler&) = default;
};

// The slabs of the units of one matrix that a rank leads, one behind the other.
struct LedSlabs {
  UnitFamily family;
  UnitRange units;
  int64_t offset = 0;    // in the flat buffers, of the first one
  int64_t elements = 0;  // of each
  int32_t matrix = 0;    // index into StageParameters::matrices
};

// One bucket that trains, as one rank has it.
struct BucketRulers {
  std::vector<FamilyRuler> rulers;  // by family; the same on every rank of the stage
  std::vector<LedSlabs> slabs;      // in storage order

  const FamilyRuler* Find(const UnitFamily& family) const;  // nullptr: none in this bucket
  // The runs of the flat buffers that are `elements` of a family's ruler, in its order; what
  // continues the last run is added to it. All units in question must be led.
  void AppendRuns(const UnitFamily& family, UnitRange elements, std::vector<UnitRange>* runs) const;
};

// Of each bucket that trains, in storage order. `parameters`: ParametersOf the place and a chunk.
std::vector<BucketRulers> RulersOf(const Plan& plan, const Place& place,
                                   const StageParameters& parameters);

// As some rank of the part has them, for what is the same for all: the rulers.
std::vector<BucketRulers> RulersOf(const Plan& plan, const PartId& part);

}  // namespace phalanx::plan

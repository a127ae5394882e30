// worker/train/holdings.h: what a rank holds of a job's state, in words that no layout changes.
//
// Optimizer state is counted along rulers (core/plan/ruler.h), which are the same under every
// layout with the same stages; so is it known what a rank holds when it has left one layout and not
// come to the next, or has parts of two. Before it comes to one with other stages all is named as
// that one has it (loose_state.h). Weights that do not train are on no ruler: they are those
// that a tensor rank of a certain width has.
//
// Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/units.h"
#include "worker/train/state_block.h"

namespace phalanx::train {

// Where `elements` of a family's ruler stand in a block's tensors, one behind the other.
struct RulerRun {
  plan::UnitFamily family;
  plan::UnitRange elements;
  int64_t state_offset = 0;
  friend bool operator==(const RulerRun&, const RulerRun&) = default;
};
// All of a block but padding, by family and first element, neighbours joined. `rulers`: of the
// block's bucket, as its rank has them.
std::vector<RulerRun> RulerRunsOf(const plan::BucketRulers& rulers, const StateBlock& block);

// Those without the elements that stand in `lacking`, ranges of the block's tensors: ascending.
std::vector<RulerRun> Without(const std::vector<RulerRun>& runs,
                              const std::vector<plan::UnitRange>& lacking);

// One ruler of one bucket of a pipeline part.
struct RulerName {
  plan::PartId part;
  int32_t bucket = 0;
  plan::UnitFamily family;
  friend auto operator<=>(const RulerName&, const RulerName&) = default;
};
// What does not train of a pipeline part, as tensor rank `tp` of `width` has it.
struct FrozenName {
  plan::PartId part;
  int32_t width = 1, tp = 0;
  friend auto operator<=>(const FrozenName&, const FrozenName&) = default;
};

struct Holdings {
  int64_t step = 0;  // of whose end all of it is
  // Masters and both moments of these elements: ascending, without overlaps.
  std::map<RulerName, std::vector<plan::UnitRange>> state;
  std::vector<FrozenName> frozen;  // ascending
};

// Of the ranks that are named there what the plan's layout gives them: all of it, of `step`.
void FillHoldings(const plan::Plan& plan, int64_t step, std::map<Rank, Holdings>* holdings);

// By family and first element; joins neighbours that stand one behind the other in the block, too.
void SortAndJoin(std::vector<RulerRun>* runs);
// Sorts ranges and joins those that touch or overlap.
void SortAndJoin(std::vector<plan::UnitRange>* ranges);

// Rows of logical tensors (columns of transposed ones) that do not train and stand in a part.
struct FrozenPiece {
  plan::UnitRange rows;  // of the logical tensor
  int64_t offset = 0;    // in the flat buffer, of the first one
  int64_t cols = 1;      // elements of a row
};
// By name of the logical tensor, then as stored.
using FrozenRows = std::map<std::string, std::vector<FrozenPiece>>;
FrozenRows FrozenRowsOf(const plan::StageParameters& parameters);

}  // namespace phalanx::train

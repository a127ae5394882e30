// core/plan/moves.h: which optimizer state has to go where when a layout is replaced.
//
// Every element that gets a home which it did not have comes from a home that is left: the primary,
// or the first mirror that is. What a rank has is on its device, whose place may be another one now
// (loss.h). What has no home left comes from host memory of its primary's node,
// which stays where the device does not, or from a checkpoint, and then everyone goes back by the
// steps done since.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/units.h"

namespace phalanx::plan {

struct Move {
  enum class Source : uint8_t { kRank, kHost, kCheckpoint } source = Source::kRank;
  PartId part;
  int32_t bucket = 0;
  UnitFamily family;
  UnitRange elements;  // of the family's ruler
  // kRank: where it is now; kHost: whose host memory has it, before.
  Rank from{-1};
  Rank to;
  int32_t from_stage = 0;  // of the module, where it was
  friend bool operator==(const Move&, const Move&) = default;
};

struct Moves {
  std::vector<Move> moves;  // by part, bucket, family, first element, then by home
  int64_t bytes = 0;        // of all moves; less would leave some home without its state
  // At most so many are lost: 0; recovery.state_every where host memory is needed, or
  // checkpoint.every if that is less; checkpoint.every where nothing else is left, and all steps of
  // a job without checkpoints.
  int64_t steps_lost = 0;
  // Behind so many steps at most every share has all its homes: 0, kMirrorStepsMax where mirrors
  // lack more than kMirrorsAtOnceMax elements (safe_again.h), and no less than until the first
  // copies in host memory, where some state has its second home there.
  int64_t safe_again_steps = 0;
};

// `after`: of a layout of the same job, such as LayoutAfter of `before`. Moves are told on its
// rulers and parts. Devices that it has lost have nothing left. Stages whose ranks stay are not
// looked at. Nothing of modules whose family has no known parameters.
Moves MovesBetween(const Plan& before, const Plan& after);

}  // namespace phalanx::plan

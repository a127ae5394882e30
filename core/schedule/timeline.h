// core/schedule/timeline.h: lays the passes of all pipeline parts on one time axis.
//
// A schedule says how the passes of each part may be ordered; the timeline decides when each of
// them starts, from the data they pass to each other and from the ranks that parts share. It is the
// source of the one total order over all messages of a step: a message stands where its last
// producer has finished. In that order nothing is ever behind something that it does not have to
// wait for, and what a message needs always stands before it.
//
// Every pass starts as soon as its data and its ranks are there, at one time on all rank classes of
// a crew. Microbatches pass a part in order. Where several passes want the same ranks at the same
// time, kBackwardInput goes first, then forwards. Passes that *fill* (weight passes that may be
// delayed, and passes of phased parts) run where their ranks would otherwise wait.
//
// Time counts in integer ticks, at least one a pass, so that the order is the same on every
// machine. Messages take no time here. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/schedule/pipeline.h"

namespace phalanx::schedule {

struct TickCost {
  int64_t forward = 1, backward_input = 1, backward_weight = 1;  // each at least 1
};

enum class PassKind : uint8_t { kForward, kBackwardInput, kBackwardWeight };

// How the passes of one part may be ordered.
struct PartRule {
  // Microbatches forwarded whose kBackwardInput has not run, at most. Of a part without a backward
  // pass: microbatches that some part behind it has not forwarded yet.
  int32_t ahead_max = 1;
  // Activations kept over all chunks of the stage until their last pass here, at most. A chunk
  // leaves room for one of each chunk behind it, without which the oldest microbatch could be
  // stuck.
  int32_t kept_max = 1;
  // Once ahead_max forwards have run, one backward and one forward in turn; before that no
  // backward.
  bool alternates = false;
  // kBackwardWeight fills; otherwise it runs right behind its kBackwardInput.
  bool weights_delayed = false;
  // Forwards and backwards run in `groups` groups of microbatches: a group's forwards fill until
  // they are wanted, its backwards fill once the gradients of the whole group are there.
  bool phased = false;
};

// Which of several chunks of a stage goes first.
enum class ChunkOrder : uint8_t {
  kRounds,   // microbatches in rounds of as many as there are stages, a round through all chunks
  kDeepest,  // forwards of the last chunk, then the older microbatch
};

struct OrderRules {
  std::vector<PartRule> parts;
  ChunkOrder chunk_order = ChunkOrder::kRounds;
  // As long as a stage of several chunks may keep more activations its forwards go before its
  // backwards.
  bool forwards_first = false;
  // Passes of a stage of several chunks keep one order instead, by kRounds: as many forwards as it
  // takes until its first backward can run, then a forward and a backward in turn. Only where all
  // chunks train and what feeds them may be two rounds ahead.
  bool in_turn = false;
  // A pass that fills waits for one that does not, if that one can start within so many percent of
  // its own length.
  int32_t patience_percent = 50;
  // Of phased parts. Forwards of microbatch m are wanted, and go before other forwards, from when
  // `pace_part` has forwarded all but `lookahead` of the microbatches before m's group.
  int32_t groups = 1;
  int32_t lookahead = 0;
  int32_t pace_part = 0;
};

struct TimedPass {
  int32_t part = 0, crew = 0;
  PassKind kind = PassKind::kForward;
  int32_t microbatch = 0;
  int64_t begin = 0;
  friend bool operator==(const TimedPass&, const TimedPass&) = default;
};

struct Message {
  int64_t time = 0;
  int32_t link = 0;
  bool backward = false;
  int32_t microbatch = 0;
};

struct Timeline {
  std::vector<TimedPass> passes;  // in order of begin; those of one rank follow one another
  std::vector<Message> messages;  // in ticket order
  std::vector<int64_t> part_end;  // when the last pass of each part ends, on all its ranks
  int64_t end = 0;                // of all of them
};

// `rules.parts` and `costs`: of each part. Rules under which some pass can never start are a
// caller's bug and end the process.
Timeline MakeTimeline(const Pipeline& pipeline, const OrderRules& rules,
                      const std::vector<TickCost>& costs);

}  // namespace phalanx::schedule

// core/plan/activations.h: how many microbatches a schedule keeps alive, and for how long.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace phalanx::plan {

// Activations that a rank keeps of one stage of a module, at most: of microbatches forwarded whose
// last pass there has not run, one for each chunk of the stage. With S stages of the module graph,
// s that of the part, p pipeline ranks, v chunks, D stages of the graph behind the module, M
// microbatches (`microbatches`, in place of the plan's):
//   no backward pass                0
//   1f1b, auto; encoders and regressors beside interleaved
//                                   min(M, S - s)
//   zero_bubble_h1; encoders and regressors beside zero_bubble_v
//                                   min(M, S - s of the module's first stage)
//   interleaved                     min(M v, (v - 1) r + 2 (p - 1 - pp) + 2 D + 1), r the longest
//                                   of max(1, floor(M / p)) even rounds of the M microbatches
//   zero_bubble_v                   min(2 M, 2 (p + D))
//   three_phase                     M for encoders on the ranks of the language module and what
//                                   feeds them; else as 1f1b, or interleaved with several chunks
int64_t ActivationsKeptMax(const Plan& plan, int32_t module, int32_t stage, int64_t microbatches);
// Upper bound of the bytes of these, where one of the c-th chunk that has a backward pass takes
// bytes[c], at least 0. It holds whatever the order of passes: how many are of the first chunks
// changes in the course of a step, but each microbatch is forwarded by the chunks in their order
// and freed by the last one first, so no chunk keeps more than the one before it. Not so where
// weight passes are delayed: of those that could run, the shorter ones fit before another pass.
// Then all but one of what is kept may be of either chunk.
int64_t KeptBytesMax(const Plan& plan, int32_t module, int32_t stage, int64_t microbatches,
                     const std::vector<int64_t>& bytes);

// Whether weight passes stand anywhere behind their input passes, not right behind.
bool DelaysWeights(const Plan& plan);
// Whether a part runs its weight pass inside its input pass, layer by layer, so that what a layer
// keeps is freed there (worker/model/stage.h). Otherwise the input gradient leaves before the
// weight pass, which is worth more where a rank waits for it that does not run the same passes. So
// both are one where the schedule has the weight pass right behind the input pass, and every rank
// that the gradient goes to holds the part, too. The program has both instructions all the same,
// and the second one finds nothing left to do.
bool BackwardIsOne(const Plan& plan, const PartId& part);

// Messages of a link that a rank has received and not yet used, at most.
struct MessagesKept {
  int64_t forward = 0;   // at its destination, beside all activations that it may keep
  int64_t backward = 0;  // gradients, at its source
};
// A gradient waits no longer than the source keeps its activation. What the source keeps waits at
// the destination or is kept there too; but with weight passes that come later, or with chunks,
// whose activations count together, all of it may wait. A source without a backward pass is ahead
// by the forwards before the steady state at most, or by all microbatches where chunks, phases or
// other modules on its ranks let it.
// `microbatches`: in place of the plan's.
MessagesKept MessagesKeptMax(const Plan& plan, const Link& link, int64_t microbatches);

}  // namespace phalanx::plan

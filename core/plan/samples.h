// core/plan/samples.h: which lane works on which samples of which microbatch.
//
// One rule deals things to the replicas of a module: each next one goes to the replica with the
// smallest (n + 1) / speed, n being what it has, ties to the lower dp. So equal replicas share
// evenly, the first ones taking the remainder, and an absent one has nothing.
//
// A step's global batch is an ordered list of samples [0, batch.global). Language replicas take
// contiguous runs of it, as many as they are dealt; each replica cuts its run into M microbatches
// (the same M everywhere) whose sizes differ by at most one, larger first, zero legal. "Samples of
// microbatch m" are those of replica 0, then of replica 1, ...: S of them. The lanes of another
// module take contiguous runs of that list, as many as they are dealt of S. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/units.h"

namespace phalanx::plan {

// Where each replica's run of `count` things begins, and the end: [replicas + 1].
std::vector<int64_t> LaneStarts(const ModulePlan& module, int64_t count);

// Positions in the step's global batch, in [0, batch.global).
// The samples of microbatch m over all language replicas, in lane order; `lane_first[i]` is where
// language lane i's run begins, with one more entry for the end.
struct MicrobatchSamples {
  std::vector<int64_t> samples;
  std::vector<int64_t> lane_first;
};
MicrobatchSamples SamplesOfMicrobatch(const Plan& plan, int64_t microbatch);

// How many there are, without listing them.
int64_t CountOfMicrobatch(const Plan& plan, int64_t microbatch);
// The first `count` positions dealt to the language replicas as one microbatch: for evaluation.
MicrobatchSamples DealMicrobatch(const Plan& plan, int64_t count);

// The part of that list, [first, end), that lane (dp) `lane` of `module` works on.
UnitRange LaneSamples(const Plan& plan, int32_t module, int32_t lane,
                      const MicrobatchSamples& microbatch);

// Samples of a whole step that each lane of `module` works on.
std::vector<int64_t> LaneSamplesOfStep(const Plan& plan, int32_t module);

// The order of samples: which sample of the data set stands at `position` of the endless stream, in
// which step s takes positions [s * global, (s + 1) * global). Each pass over the data set is a
// permutation of its own: a Feistel network over the index, so no table is kept.
int64_t SampleAt(uint64_t seed, int64_t data_set_size, int64_t position);

// One message of a link: rows of samples [first, first + count) of the microbatch's list, of which
// the message carries slice `slice` of `slices` (row slices: EvenSplit of the rows).
struct LinkMessage {
  Rank from, to;
  int64_t first = 0, count = 0;
  int32_t slice = 0, slices = 1;
};
// Messages of a link in one microbatch, forward direction, in one total order; backward has the
// same list with from and to exchanged. Inside a module, between stages of equal width: one message
// a tensor coordinate, whole rows (slices == 1). Along an edge, and where widths differ: for each
// intersecting pair of lanes one message a destination tensor rank, carrying its slice of the rows,
// from source tensor rank (slice mod source width); the destinations then gather over their tensor
// group. Lanes without samples in common send nothing. A message from a rank to itself stays in the
// list; the worker copies.
std::vector<LinkMessage> LinkMessages(const Plan& plan, int32_t link,
                                      const MicrobatchSamples& microbatch);

}  // namespace phalanx::plan

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
#include "core/plan/rows.h"
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
// The most that DealMicrobatch may be given: no replica then gets more than batch.micro.
int64_t SamplesAtOnce(const Plan& plan);

// The part of that list, [first, end), that lane (dp) `lane` of `module` works on.
UnitRange LaneSamples(const Plan& plan, int32_t module, int32_t lane,
                      const MicrobatchSamples& microbatch);

// Samples of a whole step that each lane of `module` works on.
std::vector<int64_t> LaneSamplesOfStep(const Plan& plan, int32_t module);

// The order of samples: which sample of the data set stands at `position` of the endless stream, in
// which step s takes positions [s * global, (s + 1) * global). Each pass over the data set is a
// permutation of its own: a Feistel network over the index, so no table is kept.
int64_t SampleAt(uint64_t seed, int64_t data_set_size, int64_t position);

// One message of a link: of the rows of samples [first, first + count) of the microbatch's list,
// those that are both in slice `from_slice` of `from_slices`, which is what its source answers for,
// and in slice `to_slice` of `to_slices`, which is what its destination asks for (rows.h).
struct LinkMessage {
  Rank from, to;
  int64_t first = 0, count = 0;
  int32_t from_slice = 0, from_slices = 1, to_slice = 0, to_slices = 1;
  // The validity of the samples goes along: with one message for each destination, rows or not.
  bool flags = true;
  UnitRange samples() const { return {first, count}; }
};
// Of `rows`, all that the samples have.
UnitRange RowsOfMessage(const LinkMessage& message, int64_t rows);

// Messages of a link in one microbatch, forward direction, in one total order; backward has the
// same list with from and to exchanged. Inside a module without sequence parallelism, between
// stages of equal width, every rank has all rows and hands them to the one of its tensor
// coordinate: one message each. Else each intersecting pair of lanes cuts its rows at both ends,
// and there is a message for any two slices that may meet, though they need not; who needs more
// than its slice gathers the others over its tensor group. So no row crosses twice. Lanes without
// samples in common send nothing. A message from a rank to itself stays in the list; the worker
// hands it over.
std::vector<LinkMessage> LinkMessages(const Plan& plan, int32_t link,
                                      const MicrobatchSamples& microbatch);

}  // namespace phalanx::plan

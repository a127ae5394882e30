// worker/train/transfers.h: what ranks give each other so that all come to lie in another layout.
//
// The seam between who decides that and who carries it out (relayout.h): one list for all ranks, in
// an order that all keep, so that each rank's sends and receives are those of the list that name
// it. What a rank holds already is on no list.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"
#include "worker/train/holdings.h"

namespace phalanx::train {

// Master and both moments of elements of a ruler.
struct StateTransfer {
  plan::UnitFamily family;
  plan::UnitRange elements;
  Rank from, to;
  friend bool operator==(const StateTransfer&, const StateTransfer&) = default;
};
struct BucketTransfers {
  plan::PartId part;
  int32_t bucket = 0;
  std::vector<StateTransfer> transfers;
};

// Rows of a logical tensor that does not train (columns of a transposed one).
struct WeightTransfer {
  std::string tensor;
  plan::UnitRange rows;
  Rank from, to;
  friend bool operator==(const WeightTransfer&, const WeightTransfer&) = default;
};
struct PartWeightTransfers {
  plan::PartId part;
  std::vector<WeightTransfer> transfers;
};

struct Transfers {
  std::vector<PartWeightTransfers> weights;  // by part; first
  std::vector<BucketTransfers> buckets;      // by part and bucket: what primary homes lack
  // What mirrors lack, from those primary homes once they have theirs (mirror_fill.h).
  std::vector<BucketTransfers> mirrors;
  int64_t state_elements = 0;  // of all, each with its three numbers
};

// What brought a rank's state into its layout.
struct Moved {
  int64_t sent_bytes = 0, received_bytes = 0;
  absl::Duration messages;  // of all buckets: until they had come, and receivers had said so
};

// What brings everything that `after` has to its homes, mirrors too, from ranks that hold it, and
// as little as can be; as does the core's MovesBetween, but from any state: ranks may be between
// layouts. State comes from who is to hold it no longer, if anybody, best of the same failure
// domain: he lets go of it when who asked him has it, so that losses meanwhile meet as many copies
// as before. `holdings`: of ranks that live, all of one step; a rank that is missing holds nothing.
// `after`: of the job, with the stages by which the holdings are named.
// Where mirrors lack `at_once_max` elements or fewer, of all ranks, they are given them with the
// primaries, from whoever holds them: until all have theirs, ranks keep what they had.
// Errors: FailedPrecondition where nobody holds what a rank needs, with the part's name;
// InvalidArgument if steps differ.
absl::StatusOr<Transfers> TransfersInto(const plan::Plan& after,
                                        const std::map<Rank, Holdings>& holdings,
                                        int64_t at_once_max = 0);

}  // namespace phalanx::train

// tests/sim/cluster/transfers.h: what ranks hold of a job's state, and who gives what to whom so
// that all come to lie in another layout.
//
// A second, plain implementation of what worker/train/transfers.h decides, over the same rulers.
//
// Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/units.h"

namespace phalanx::sim {

struct BucketName {
  plan::PartId part;
  int32_t bucket = 0;
  friend auto operator<=>(const BucketName&, const BucketName&) = default;
};
struct RulerName {
  BucketName bucket;
  plan::UnitFamily family;
  friend auto operator<=>(const RulerName&, const RulerName&) = default;
};
// Ascending, without overlaps, neighbours joined.
using Ranges = std::vector<plan::UnitRange>;
using Holdings = std::map<RulerName, Ranges>;

void AddRange(plan::UnitRange range, Ranges* ranges);
Ranges Intersection(const Ranges& a, const Ranges& b);
Ranges Difference(const Ranges& a, const Ranges& b);
uint64_t HashOf(const Holdings& holdings);
// The same elements on the rulers of another plan of the job, which may cut modules into other
// stages.
Holdings Renamed(const Holdings& holdings, const plan::Plan& from, const plan::Plan& to);

// One bucket after the other: by giver and taker what goes over.
struct TransferRound {
  BucketName bucket;
  std::map<std::pair<int32_t, int32_t>, Holdings> messages;
};
// Errors: FailedPrecondition where nobody holds what somebody needs.
absl::StatusOr<std::vector<TransferRound>> PlanTransfers(
    const std::map<int32_t, Holdings>& needs, const std::map<int32_t, Holdings>& holdings);

}  // namespace phalanx::sim

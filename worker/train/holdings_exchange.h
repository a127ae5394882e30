// worker/train/holdings_exchange.h: ranks tell each other what they hold of a job's state.
//
// Mostly all have left the same layout, and what it gives to each follows from that: then they say
// no more than which it was. Only where one was between two layouts when its epoch ended, or holds
// nothing, all say what they have, element by element.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "worker/train/holdings.h"
#include "worker/train/verified_exchange.h"

namespace phalanx::train {

struct OwnHoldings {
  Holdings holdings;  // nothing: the rank brings no state
  // The layout that it has left, with all that it had there; nullptr: it brings nothing, or lay
  // between two.
  const plan::Plan* whole = nullptr;
};

// What each rank of the group holds, those without anything left out. All of them call it.
// Errors: those of VerifiedExchange; DataLoss if what another says cannot be.
absl::StatusOr<std::map<Rank, Holdings>> ExchangeHoldings(const OwnHoldings& own,
                                                          const BulkGroup& group, Rank rank,
                                                          at::Device device,
                                                          std::function<bool()> stopped);

// As numbers; nullopt: they are none of any holdings. For tests, too.
std::vector<int64_t> EncodeHoldings(const Holdings& holdings);
std::optional<Holdings> DecodeHoldings(absl::Span<const int64_t> numbers);

}  // namespace phalanx::train

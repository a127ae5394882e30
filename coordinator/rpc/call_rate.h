// coordinator/rpc/call_rate.h: how often one caller may call.
//
// Each call takes one out of the caller's store; who has none left is refused until it fills again.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/caller_stores.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

struct CallRateOptions {
  double calls_per_second = 200;                   // 0: no limit
  double calls_at_once = 2000;                     // that a full store has; at least 1
  size_t callers_max = CallerStores::kCallersMax;  // whose stores are not full
};

// Thread-safe.
class CallRate {
 public:
  explicit CallRate(CallRateOptions options)
      : options_(options),
        stores_({.per_second = options.calls_per_second,
                 .size = options.calls_at_once,
                 .callers_max = options.callers_max}) {}

  // Takes a call of the caller's at `now`. Errors: ResourceExhausted.
  absl::Status Take(const Caller& caller, SteadyTime now = SteadyNow());

 private:
  const CallRateOptions options_;
  CallerStores stores_;
};

}  // namespace phalanx::coordinator

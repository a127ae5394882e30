// coordinator/rpc/call_rate.h: how often one caller may call.
//
// Everybody has a store of calls that fills at a steady rate; each call takes one, and who has none
// left is refused until it fills again. Callers in plaintext are not counted: nobody knows who they
// are.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "coordinator/rpc/access.h"
#include "core/base/mutex.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

struct CallRateOptions {
  double calls_per_second = 200;  // 0: no limit
  double calls_at_once = 2000;    // that a full store has; at least 1
  size_t callers_max = 16'384;    // whose stores are not full
};

// Thread-safe.
class CallRate {
 public:
  explicit CallRate(CallRateOptions options) : options_(options) {}

  // Takes a call of the caller's at `now`. Errors: ResourceExhausted.
  absl::Status Take(const Caller& caller, SteadyTime now = SteadyNow()) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Store {
    double calls = 0;
    SteadyTime at;
  };
  double CallsOf(const Store& store, SteadyTime now) const;

  const CallRateOptions options_;
  Mutex mu_;
  // By KeyOf. A full store is as good as none: at the bound they are forgotten, and if none is full
  // a newcomer is refused.
  std::map<std::string, Store> stores_ ABSL_GUARDED_BY(mu_);
};

}  // namespace phalanx::coordinator

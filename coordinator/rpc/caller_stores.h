// coordinator/rpc/caller_stores.h: what each caller has in store, of calls or of bytes.
//
// Every store fills at a steady rate, up to its size. Callers in plaintext are not counted: nobody
// knows who they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "coordinator/rpc/access.h"
#include "core/base/mutex.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

// Thread-safe.
class CallerStores {
 public:
  static constexpr size_t kCallersMax = 16'384;

  struct Options {
    double per_second = 0;  // 0: no limit
    double size = 0;        // of a full one
    size_t callers_max = kCallersMax;
  };
  explicit CallerStores(Options options) : options_(options) {}

  // kTooMany: callers_max others have stores that are not full.
  enum class Taken : uint8_t { kTaken, kNotThere, kTooMany };
  // Takes `amount` of the caller's, where there is as much; else nothing.
  Taken Take(const Caller& caller, double amount, SteadyTime now = SteadyNow())
      ABSL_LOCKS_EXCLUDED(mu_);

  // Takes `amount`, also below nothing. How long it takes until it is not below any more; a second
  // of one that cannot be counted, as kTooMany.
  absl::Duration Spend(const Caller& caller, double amount, SteadyTime now = SteadyNow())
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Store {
    double amount = 0;
    SteadyTime at;
  };
  bool Counts(const Caller& caller) const { return options_.per_second != 0 && caller.has_value(); }
  double AmountOf(const Store& store, SteadyTime now) const;
  // As it is now; nullptr: there are too many.
  Store* StoreLocked(const Identity& caller, SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  Mutex mu_;
  // By KeyOf. A full store is as good as none: at the bound they are forgotten.
  std::map<std::string, Store> stores_ ABSL_GUARDED_BY(mu_);
};

}  // namespace phalanx::coordinator

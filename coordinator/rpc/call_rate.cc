#include "coordinator/rpc/call_rate.h"

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

absl::Status CallRate::Take(const Caller& caller, SteadyTime now) {
  switch (stores_.Take(caller, 1, now)) {
    case CallerStores::Taken::kTaken:
      break;
    case CallerStores::Taken::kNotThere:
      return absl::ResourceExhaustedError(absl::StrCat(caller->name, " calls more often than ",
                                                       options_.calls_per_second,
                                                       " times a second; ask again in 1 s"));
    case CallerStores::Taken::kTooMany:
      return absl::ResourceExhaustedError(
          absl::StrCat(options_.callers_max, " callers call at once; ask again in 1 s"));
  }
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator

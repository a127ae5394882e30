#include "coordinator/rpc/unread_requests.h"

#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

bool IsNamed(const Caller& caller) { return caller.has_value() && !caller->name.empty(); }

}  // namespace

absl::Status UnreadRequests::Begin(const Caller& caller, SteadyTime now) {
  if (!IsNamed(caller)) return absl::OkStatus();
  bool look = false;
  {
    MutexLock lock(&mu_);
    look = now >= next_look_;
  }
  if (look) Look(now);
  MutexLock lock(&mu_);
  Calls& calls = callers_[KeyOf(*caller)];
  if (const size_t count = calls.begun.size() + calls.late.size(); count >= bounds_.of_caller_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        caller->name, " has begun ", count, " calls whose requests have not come; at most ",
        bounds_.of_caller_max, ": ask again in ", absl::FormatDuration(bounds_.remembered)));
  }
  calls.caller = *caller;
  calls.begun.push_back(now);
  return absl::OkStatus();
}

void UnreadRequests::End(const Caller& caller) {
  if (!IsNamed(caller)) return;
  MutexLock lock(&mu_);
  const auto found = callers_.find(KeyOf(*caller));
  if (found == callers_.end()) return;
  Calls& calls = found->second;
  if (!calls.begun.empty()) calls.begun.pop_front();
  if (calls.begun.empty() && calls.late.empty()) callers_.erase(found);
}

bool UnreadRequests::Has(const Caller& caller) const {
  if (!IsNamed(caller)) return false;
  MutexLock lock(&mu_);
  return callers_.contains(KeyOf(*caller));
}

void UnreadRequests::Look(SteadyTime now) {
  std::vector<std::pair<Identity, int64_t>> found;
  {
    MutexLock lock(&mu_);
    next_look_ = now + absl::ToChronoNanoseconds(absl::Seconds(1));
    const SteadyTime late = now - absl::ToChronoNanoseconds(bounds_.patience);
    const SteadyTime forgotten = now - absl::ToChronoNanoseconds(bounds_.remembered);
    for (auto it = callers_.begin(); it != callers_.end();) {
      Calls& calls = it->second;
      while (!calls.late.empty() && calls.late.front() <= forgotten) calls.late.pop_front();
      int64_t count = 0;
      for (; !calls.begun.empty() && calls.begun.front() <= late; ++count) {
        calls.begun.pop_front();
        calls.late.push_back(now);
      }
      if (count != 0) found.emplace_back(calls.caller, count);
      it = calls.begun.empty() && calls.late.empty() ? callers_.erase(it) : std::next(it);
    }
  }
  for (const auto& [caller, count] : found) {
    late_(caller, count,
          absl::DeadlineExceededError(absl::StrCat(
              count, count == 1 ? " request" : " requests", " did not come whole within ",
              absl::FormatDuration(bounds_.patience), ": too large, cut off or too slow")));
  }
}

}  // namespace phalanx::coordinator

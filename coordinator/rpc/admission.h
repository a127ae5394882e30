// coordinator/rpc/admission.h: whether a person may make one more call, by how often they call and
// over how many connections.
//
// Workers are not counted, so that no limit of theirs can cost a job its nodes, and neither are
// callers in plaintext, of whom nobody knows who they are.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/call_rate.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Thread-safe.
class Admission {
 public:
  // Whether the connection of that peer, as gRPC names it, is open.
  using IsOpen = std::function<bool(const std::string& peer)>;
  // `connections_max`: of one person; 0: any number.
  Admission(CallRateOptions rate, size_t connections_max, IsOpen is_open)
      : rate_(rate), connections_max_(connections_max), is_open_(std::move(is_open)) {}

  // A call over a connection. Errors: ResourceExhausted.
  absl::Status Take(const Caller& caller, const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  // One over a connection that somebody else counts.
  absl::Status Take(const Caller& caller) { return rate_.Take(caller); }

 private:
  absl::Status CountConnection(const std::string& name, const std::string& peer)
      ABSL_LOCKS_EXCLUDED(mu_);

  CallRate rate_;
  const size_t connections_max_;
  const IsOpen is_open_;
  Mutex mu_;
  // By name: peers whose connections were open when they were looked at last.
  std::map<std::string, std::set<std::string>> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace phalanx::coordinator

// coordinator/rpc/ending.h: the end of a unary call: counted, and told of where the call changes
// something.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/audit.h"
#include "core/base/ids.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

// Copied into callbacks, called once.
class Ending {
 public:
  Ending(grpc::CallbackServerContext* context, absl::string_view method, Metrics& metrics);
  // Of a call that changes something: its end is told to `audit`.
  Ending(grpc::CallbackServerContext* context, absl::string_view method, Metrics& metrics,
         Audit& audit);
  // Of one that is served as a stream: `finish` ends it. It has no reactor of this, nor With.
  Ending(grpc::CallbackServerContext* context, absl::string_view method, Metrics& metrics,
         Audit& audit, std::function<void(const grpc::Status& status)> finish);

  void operator()(const absl::Status& status) const;
  grpc::ServerUnaryReactor* With(const absl::Status& status) const;
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  const Caller& caller() const { return call_->caller; }
  // As gRPC names the connection's other end.
  const std::string& peer() const { return call_->peer; }
  // What is changed, for the audit; said by whoever knows it first, before the end.
  void Changes(JobId job) const;
  void Changes(const std::string& node) const;
  // `node`: that it is exchanged for; empty: none.
  void ChangesToken(const std::string& id, const std::string& node = "") const;

 private:
  struct Call {
    Caller caller;
    std::string peer;
    std::string object;
  };

  Ending(grpc::CallbackServerContext* context, absl::string_view method, Metrics& metrics,
         Audit* audit);

  grpc::ServerUnaryReactor* reactor_ = nullptr;  // null: there is finish_
  std::function<void(const grpc::Status&)> finish_;
  absl::string_view method_;
  Metrics* metrics_;
  Audit* audit_ = nullptr;  // null: it changes nothing
  SteadyTime start_;
  std::shared_ptr<Call> call_;  // of whoever has the call in hand
};

}  // namespace phalanx::coordinator

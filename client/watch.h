// client/watch.h: following a job to its end.
#pragma once

#include <grpcpp/client_context.h>

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/format.h"
#include "core/base/mutex.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

// Ends a watch from another thread, as Ctrl-C does. Thread-safe.
class Stopper {
 public:
  void Stop();
  bool stopped() const;
  // Returns after `pause`, or at once when it is stopped. True: it is stopped.
  bool Pause(absl::Duration pause);

 private:
  friend class StopScope;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the stream under way
};

// While it lives, Stop() cancels `context`; at once if it was called before.
class StopScope {
 public:
  StopScope(Stopper& stopper, grpc::ClientContext& context);
  ~StopScope();

 private:
  Stopper& stopper_;
};

struct Watched {
  // The last status seen.
  v1::JobStatus job;
  std::optional<v1::EvaluationReport> evaluation;
  // The watch ended before the job did, because of the stopper.
  bool detached = false;
};

// Follows `job` until its phase is terminal, showing progress on io.talk. A broken stream is opened
// again, while less than `patience` has passed without an answer (the connection's timeout before
// the first one). Errors: NotFound; Unavailable after that time; what else the server says.
absl::StatusOr<Watched> WatchJob(Connection& connection, const std::string& job, Stopper& stopper,
                                 Io& io, absl::Duration patience = absl::Seconds(60));

}  // namespace phalanx::client

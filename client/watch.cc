#include "client/watch.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "client/job_view.h"
#include "client/progress.h"
#include "client/rpc_status.h"

namespace phalanx::client {

void Stopper::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.SignalAll();
  if (context_ != nullptr) context_->TryCancel();
}

bool Stopper::stopped() const {
  MutexLock lock(&mu_);
  return stopped_;
}

bool Stopper::Pause(absl::Duration pause) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
  MutexLock lock(&mu_);
  while (!stopped_ && !changed_.WaitUntil(&mu_, end)) {
  }
  return stopped_;
}

StopScope::StopScope(Stopper& stopper, grpc::ClientContext& context) : stopper_(stopper) {
  MutexLock lock(&stopper_.mu_);
  stopper_.context_ = &context;
  if (stopper_.stopped_) context.TryCancel();
}

StopScope::~StopScope() {
  MutexLock lock(&stopper_.mu_);
  stopper_.context_ = nullptr;
}

absl::StatusOr<Watched> WatchJob(Connection& connection, const std::string& job, Stopper& stopper,
                                 Io& io, absl::Duration patience) {
  Watched watched;
  Progress progress(io);
  Backoff backoff(Connection::Draw());
  bool lost = false;
  std::chrono::steady_clock::time_point lost_at;
  while (true) {
    grpc::ClientContext context;
    grpc::Status status;
    {
      const StopScope scope(stopper, context);
      v1::WatchJobRequest request;
      request.set_job(job);
      const std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream =
          connection.stub().WatchJob(&context, request);
      v1::WatchJobResponse response;
      while (stream->Read(&response)) {
        backoff.Reset();
        lost = false;
        progress.Show(response, absl::Now());
        if (response.has_evaluation()) watched.evaluation = response.evaluation();
        watched.job = std::move(*response.mutable_job());
      }
      status = stream->Finish();
    }
    if (IsTerminal(watched.job.phase())) break;
    if (stopper.stopped()) {
      watched.detached = true;
      break;
    }
    const bool broken = status.ok() || IsOfEnding(status);
    // Somebody who never answered is not worth as long a wait as somebody who restarts.
    const absl::Duration limit = watched.job.id() == 0 ? connection.timeout() : patience;
    const auto now = std::chrono::steady_clock::now();
    // A stream may be quiet for hours before it breaks.
    if (!lost) lost_at = now;
    if (!broken || absl::FromChrono(now - lost_at) > limit) {
      progress.Finish();
      return connection.Explain(
          status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended early")
                      : status);
    }
    if (!lost) {
      progress.Finish();
      io.talk << "the coordinator at " << connection.server() << " does not answer; trying again\n";
    }
    lost = true;
    connection.Wait(status, connection.TryNext(backoff));
  }
  progress.Finish();
  return watched;
}

}  // namespace phalanx::client

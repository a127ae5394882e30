// tests/bench/heartbeats/jobs.h: what a person does with jobs, and what many who watch one are
// told.
//
// What a coordinator refuses, and what does not come, throws std::runtime_error.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "transport/tls.h"

namespace phalanx::coordinator {

// One module in data parallel.
struct JobShape {
  std::string name;
  int32_t ranks = 1;
  int64_t steps = 1'000'000;
  std::string device_kind = "gpu";
  std::string ladder;  // "drop-replica"; empty: the loss of a rank ends the job
};
std::string JobText(const JobShape& shape);

// Thread-safe.
class Jobs {
 public:
  Jobs(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials);

  // Its number.
  int64_t Submit(const JobShape& shape);
  // Until it comes to that phase.
  void AwaitPhase(int64_t job, v1::JobPhase phase);
  void Cancel(int64_t job);
  // That are connected and not suspect.
  int64_t ReadyNodes();

 private:
  const std::unique_ptr<v1::JobService::Stub> stub_;
};

// So many who watch each of a number of jobs until it ends, each over a connection of their own.
class Watchers {
 public:
  Watchers(const std::string& address, const transport::TlsFiles& files, int count);
  // Waits for those who still watch.
  ~Watchers();
  // After those before it.
  void Watch(int64_t job) ABSL_LOCKS_EXCLUDED(mu_);
  // Until all have seen the ends of all jobs, which is soon after the last has ended.
  void AwaitEnds() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run(v1::JobService::Stub& stub) ABSL_LOCKS_EXCLUDED(mu_);
  // False: it is time to go.
  bool AwaitJob(size_t index, int64_t& job) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteEnd(const std::string& failure) ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::vector<int64_t> jobs_ ABSL_GUARDED_BY(mu_);
  size_t ends_ ABSL_GUARDED_BY(mu_) = 0;  // that were seen, of all watchers
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  std::string failure_ ABSL_GUARDED_BY(mu_);  // the first
  const size_t count_;
  std::vector<std::jthread> threads_;  // last member: join before the rest ends
};

}  // namespace phalanx::coordinator

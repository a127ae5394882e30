// tests/e2e/jobs/submitter.h: a stream of submits that kills of coordinators cut into.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"

namespace phalanx::e2e {

// Submits jobs that no node can take, one after the other, and remembers what was acknowledged.
// Calls that a kill cuts off are repeated under the same request id.
class Submitter {
 public:
  // `servers`: HOST:PORT, of several between commas. `number` tells its jobs from others'.
  Submitter(const std::string& servers, const DataFolder& data, int32_t number);
  // Ends the stream of submits; what was acknowledged, by request id, which is the job's name too.
  // Call once.
  std::map<std::string, int64_t> Finish();

 private:
  bool stopping();
  void Work();
  // Of one job, until it is acknowledged or the stream ends.
  void Submit(const std::string& name);

  const std::vector<std::unique_ptr<v1::JobService::Stub>> stubs_;
  const DataFolder& data_;
  const int32_t number_;
  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, int64_t> acknowledged_;  // of the thread, then of Finish
  std::thread thread_;
};

// What became of jobs that were acknowledged.
struct Kept {
  int64_t missing = 0, doubled = 0;
};
Kept LookFor(const std::map<std::string, int64_t>& acknowledged, Cluster& cluster);

}  // namespace phalanx::e2e

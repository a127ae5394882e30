// tests/e2e/jobs/submitter.h: a stream of changes that kills of coordinators cut into.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"

namespace phalanx::e2e {

// What somebody was told is done, and what of it they did not find again.
struct Acknowledged {
  std::map<std::string, int64_t> submits;  // by request id, which is the job's name too
  std::set<std::string> cancels, suspends;
  // Cordons and uncordons of a node. Each was looked for before the next one, which takes its
  // place.
  int64_t marks = 0, marks_missing = 0;
  std::string node;
  std::optional<std::string> mark;  // the last one's reason; empty: it was an uncordon

  // Of another stream; of two, one has a node.
  void Add(Acknowledged other);
};

// Submits jobs that no node can take, one after the other, and remembers what was acknowledged.
// Calls that a kill cuts off are repeated, a submit under the same request id.
class Submitter {
 public:
  // `servers`: HOST:PORT, of several between commas. `number` tells its jobs from others'.
  Submitter(const std::string& servers, const DataFolder& data, int32_t number);
  // The same, which also cancels one job of three, suspends another, and cordons and uncordons
  // `node`, unless that is empty, by turns. No other may do so.
  Submitter(const std::string& servers, const DataFolder& data, int32_t number, std::string node);
  // Ends the stream; what was acknowledged. Call once.
  Acknowledged Finish();

 private:
  using Stubs = std::vector<std::unique_ptr<v1::JobService::Stub>>;
  Submitter(Stubs stubs, const DataFolder& data, int32_t number, bool changes, std::string node);
  bool stopping();
  void Work();
  void Submit(const std::string& name);
  // Of a job that was submitted.
  void Change(const std::string& name, int64_t count);
  // Whether the node's mark is still the last one that was acknowledged.
  void LookForMark();
  void SetMark(const std::string& reason);
  // Until it is answered by somebody who serves; whether with OK. False also where the stream ends.
  template <typename Request, typename Response>
  bool Call(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                         Response*),
            const Request& request, Response* response);

  const Stubs stubs_;
  const DataFolder& data_;
  const int32_t number_;
  const bool changes_;
  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Acknowledged acknowledged_;  // of the thread, then of Finish
  std::thread thread_;
};

// What became of changes that were acknowledged.
struct Kept {
  int64_t missing = 0, doubled = 0;  // jobs
  int64_t cancels_missing = 0, suspends_missing = 0, marks_missing = 0;

  bool all() const {
    return missing + doubled + cancels_missing + suspends_missing + marks_missing == 0;
  }
};
Kept LookFor(const Acknowledged& acknowledged, Cluster& cluster);

}  // namespace phalanx::e2e

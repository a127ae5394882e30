// tests/e2e/jobs/load.h: what coordinators are killed under.
//
// A cluster over mutual TLS whose coordinators take join tokens, with two nodes. On `here` a job
// trains from the beginning to the end, and nothing else has room. On `beside` there is room for
// one short job at a time. Two streams of changes come meanwhile, one of which also cordons,
// drains and uncordons `here`, and puts it into the reserve and takes it out again.
//
// Not thread-safe. Waits as Cluster does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/jobs/submitter.h"
#include "tests/support/authority.h"
#include "tests/support/process.h"
#include "transport/tls.h"

namespace phalanx::e2e {

struct LoadOptions {
  std::string store;  // empty: a folder of its own
  size_t coordinators = 1;
};

// What became of it all.
struct Outcome {
  Acknowledged acknowledged;
  Kept kept;
  // Of the job that trains.
  int64_t steps = 0;       // that are in its metrics
  int64_t steps_told = 0;  // that somebody was told of
  std::string step_fault;  // StepsFault
  int64_t epoch = 0;
  int64_t ranks_lost = 0;
  // Of short jobs: how many there were, and how many did not succeed with each step once. And how
  // many processes their ranks had beyond the first one.
  int64_t short_jobs = 0, short_jobs_wrong = 0, short_ranks_again = 0;

  // Nothing that was acknowledged is missing or double, no job is stuck, no rank was started again,
  // and no step is missing or double.
  bool good() const;
};

class Load {
 public:
  // Returns once the job trains and both nodes are there.
  explicit Load(const LoadOptions& options = {});

  Cluster& cluster() { return cluster_; }
  // Returns once it is acknowledged. It may wait for those before it.
  void SubmitShort();
  // Until whoever serves has both workers.
  void AwaitWorkers();
  // Waits for the end of every short job, and for a further step of the one that trains, and ends
  // that. Call once.
  Outcome Finish();

 private:
  ClusterOptions OptionsOf(const LoadOptions& options) const;

  const support::Authority authority_;
  const transport::TlsFiles operator_ = authority_.User("olga", "operator");
  const DataFolder data_ = MakeData();
  Cluster cluster_;
  int64_t job_ = 0;
  std::map<int32_t, support::ProcessWatch> ranks_;  // of the job that trains
  std::map<std::string, int64_t> short_jobs_;       // by name, which is that of their output too
  std::vector<std::unique_ptr<Submitter>> submitters_;
};

}  // namespace phalanx::e2e

// tests/sim/scale/workload.h: the cluster and the jobs of the simulation at scale, and what is done
// about lost devices.
//
// Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job_spec.h"

namespace phalanx::scale {

// What becomes of a replica that has lost devices.
enum class Policy : uint8_t {
  kDropReplica,  // it is left out
  kParity,       // its hit stages go on, all as narrow as the narrowest of the job
  kOwn,          // its hit stages go on, each as wide as it can be
  kSpares,       // idle devices of replicas that are left out take over; the planner's alone
};
std::vector<Policy> PoliciesInForce();
std::string NameOf(Policy policy);

struct Workload {
  int32_t nodes = 0, devices_per_node = 8;
  int32_t tp = 1, pp = 1, dp = 1;  // of the largest job
  int64_t samples = 8;             // of a step for each replica
  std::string architecture;        // of the job file, on one line
  int64_t device_bytes = 0, node_bytes = 0;

  int32_t devices() const { return nodes * devices_per_node; }
  int32_t replica_ranks() const { return tp * pp; }
  int32_t job_ranks() const { return replica_ranks() * dp; }
};
// 10,000 nodes, and jobs as that of the paper: its 480B model on 32,768 devices.
Workload PaperWorkload();
// For a test: 24 nodes, jobs of 64 devices.
Workload SmallWorkload();

// Replicas of each job that the cluster has devices for: as many of the largest as there can be,
// and one of what is left.
std::vector<int32_t> ReplicasOfJobs(const Workload& workload);

// A job file that the coordinator takes. `samples`: of a step for each replica.
std::string Document(const Workload& workload, Policy policy, const std::string& name,
                     int32_t replicas, int64_t samples);
job::JobSpec SpecOf(const std::string& document);

}  // namespace phalanx::scale

// tests/sim/scale/light_cluster.h: the real coordinator and planner with thousands of nodes whose
// daemons answer at once.
//
// A daemon says what the machine waits for and nothing else: data is prepared, ranks have left an
// epoch, are ready, have state in all its homes. Steps take what the simulated step of the layout
// takes, and recoveries no time at all, since what they would take is not known here; so they are
// counted. A step that was under way when its epoch ended is done again.
//
// A device that fails of hardware is reported by its node, which is repaired as a whole and comes
// back with another daemon process; one that fails of software ends its rank's process, and its
// node is ready for the rank again after the outage.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/cluster/timeline.h"
#include "tests/sim/scale/field.h"
#include "tests/sim/scale/host.h"
#include "tests/sim/scale/throughput.h"
#include "tests/sim/scale/workload.h"

namespace phalanx::scale {

struct LightOptions {
  Workload workload;
  Policy policy = Policy::kOwn;
  // Longer than the simulation: daemons then need not send heartbeats.
  absl::Duration heartbeat_timeout = absl::InfiniteDuration();
};

// Of one job since Measure().
struct JobTally {
  int32_t ranks = 0;
  int64_t changes = 0;    // epochs that began
  double seconds = 0;     // simulated
  double work_lost = 0;   // seconds of the healthy job's that replicas could not do
  double step_lost = 0;   // seconds that steps took longer than the healthy ones
  double broken_off = 0;  // seconds of steps that were done again
  int64_t steps = 0;      // that were done
  std::string ended;      // why; empty: it trains
};

class LightCluster {
 public:
  explicit LightCluster(LightOptions options);

  // All nodes register.
  void Register();
  // Jobs fill the cluster; returns when all train.
  void Train();
  // At once.
  void Break(const std::vector<Outage>& outages);
  // What happens until then.
  void Run(absl::Duration duration);
  // Failures of the field from now on.
  void Suffer(Field& field);
  // One of each node.
  void Heartbeats();

  // Tallies begin.
  void Measure();
  std::vector<JobTally> Tallies();
  // Share of the jobs' devices that is out.
  double FailedShare() const;
  int64_t failures() const { return failures_; }
  // Of each rank of a job.
  const std::vector<int32_t>& DevicesOf(size_t job) const { return jobs_[job].devices; }
  HostTimes& times() { return host_.times(); }
  const coordinator::Coordinator& machine() const { return host_.machine(); }

 private:
  struct Node {
    uint64_t session = 0, incarnation = 0;
  };
  struct Device {
    int32_t job = -1;  // index of jobs_
    int32_t rank = 0;
    bool process = false;  // which keeps the job's state
    bool out = false, hardware = false;
    Instant back;
  };
  struct Job {
    JobId id;
    std::unique_ptr<Yardstick> yardstick;
    std::vector<int32_t> devices;  // of each rank
    // The epoch that was assigned last, and the one that has begun last.
    Epoch assigned, begun;
    Shared<plan::Layout> layout;
    std::vector<bool> works, worked;  // by rank, in those
    bool trains = false;
    coordinator::EpochStart start;  // the last step
    int32_t reporter = 0;
    Throughput rate;
    Instant rate_since, step_since;
    uint64_t timer = 0;
    bool safe = false;  // has been said
    JobTally tally;
  };

  static constexpr const char* kDataDigest = "data";
  static std::string NameOf(int32_t node);
  int32_t NodeOf(int32_t device) const { return device / options_.workload.devices_per_node; }
  void Open(int32_t node);

  // What the coordinator says.
  void OnCommand(const coordinator::SendCommand& order);
  void OnPrepare(int32_t node, uint64_t number);
  void OnAssign(int32_t node, const coordinator::Assign& order);
  void OnBegin(int32_t node, const coordinator::BeginEpoch& order);
  void OnView(const coordinator::JobView& view);
  void Finish(int32_t node, uint64_t number, bool with_data = false);

  // What ranks do.
  Job* Find(JobId id);
  void PlaceDevices(Job& job, const plan::Layout& layout);
  void Enter(Job& job, const coordinator::Assign& order);
  void Begin(Job& job);
  void DoStep(Job& job);
  void Tally(Job& job);
  template <typename Body>
  void Report(const Job& job, int32_t rank, Epoch epoch, Body body);
  void ReportOutage(const Job& job, int32_t rank, Epoch epoch);

  void Fail(const Outage& outage);
  void Repair(int32_t node);
  void FailNext(Field& field);

  LightOptions options_;
  sim::Timeline timeline_{1};
  Host host_;
  std::vector<Node> nodes_;
  std::vector<Device> devices_;
  std::vector<Job> jobs_;
  uint64_t sessions_ = 0;
  std::vector<int32_t> session_nodes_;  // the node of each
  int32_t out_ = 0;                     // devices of jobs
  int64_t failures_ = 0;
};

}  // namespace phalanx::scale

// tests/sim/scale/host.h: the process of the coordinator around the real machine: it stores at
// once, has plans made by the real planner, and measures what both take.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <vector>

#include "coordinator/machine/coordinator.h"
#include "tests/sim/cluster/timeline.h"

namespace phalanx::scale {

// Of the wall clock, in seconds.
struct HostTimes {
  double machine = 0;            // all steps of the machine
  int64_t events = 0;            // that it was fed
  std::vector<double> planning;  // of each plan, but for a job's first ones
};

class Host {
 public:
  Host(sim::Timeline& timeline, coordinator::CoordinatorOptions options);

  // Whoever answers the machine.
  std::function<void(const coordinator::SendCommand&)> send;
  std::function<void(const coordinator::JobView&)> publish;

  // Takes the event after those that it was given before.
  void Feed(coordinator::Event event);
  void Submit(coordinator::JobRequestPtr request);

  const coordinator::Coordinator& machine() const { return machine_; }
  HostTimes& times() { return times_; }

 private:
  void StepMachine(const coordinator::Event& event);
  void Carry(const coordinator::Action& action);
  void Plan(const coordinator::ComputePlan& order);
  void Arm();

  sim::Timeline& timeline_;
  coordinator::Coordinator machine_;
  std::deque<coordinator::Event> inbox_;
  bool stepping_ = false;
  Instant armed_ = absl::InfiniteFuture();
  uint64_t stored_ = 0, token_ = 0;
  std::set<uint64_t> plans_;  // that are wanted
  HostTimes times_;
};

}  // namespace phalanx::scale

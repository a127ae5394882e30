// tests/sim/scale/throughput.h: what a job without some of its devices can do, against the healthy
// one.
//
// Two figures, both from the shapes of the model under the project's own costs. *Work*: what its
// replicas could do if samples could be cut at will, each as fast as its slowest stage. *Step*: the
// simulated step, in which a step keeps its samples and each replica has whole ones.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "core/job/job_spec.h"
#include "core/plan/plan.h"

namespace phalanx::scale {

struct Throughput {
  int32_t replicas = 0;   // that take part
  int32_t narrowed = 0;   // of them
  int32_t narrowest = 0;  // width of a stage of them
  double work = 0;        // of the healthy job's
  double step = 0;        // seconds
};

// Not thread-safe.
class Yardstick {
 public:
  // Ends the process if the document cannot be planned.
  explicit Yardstick(const job::JobSpec& spec);

  const plan::Plan& healthy() const { return healthy_; }
  double healthy_step() const { return healthy_step_; }
  // Of a layout of the document, or of one that differs in its batch.
  Throughput Measure(const plan::Layout& layout);

 private:
  double StageTime(int32_t stage, int32_t width);

  plan::Plan healthy_;
  std::map<std::pair<int32_t, int32_t>, double> stage_times_;  // FLOPs of a sample; by stage, width
  double healthy_time_ = 0;                                    // of the slowest stage
  double healthy_step_ = 0;
};

}  // namespace phalanx::scale

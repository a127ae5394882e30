// tests/bench/heartbeats/demands.h: what a run of a benchmark must hold.
//
// Of one thread.
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <utility>
#include <vector>

namespace phalanx::coordinator {

class Demands {
 public:
  // `what`: what is the case where it does not hold.
  void That(bool holds, std::string what) {
    if (!holds) broken_.push_back(std::move(what));
  }
  // Once, behind the loop: the run has failed where something does not hold. It says what, and the
  // counters, which are not shown of a run that failed.
  void Settle(benchmark::State& state) const;

 private:
  std::vector<std::string> broken_;
};

// The counters NAME_p50_ms, NAME_p99_ms and NAME_max_ms; without NAME_ where it is empty. Returns
// the second. `milliseconds`: at least one.
double ReportMilliseconds(benchmark::State& state, const std::string& name,
                          std::vector<double> milliseconds);

}  // namespace phalanx::coordinator

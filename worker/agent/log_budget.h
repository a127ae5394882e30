// worker/agent/log_budget.h: how fast a rank may write its log.
//
// What it may write at once fills at a steady rate. Past it everything is dropped until a second's
// worth has filled again, so that a log has few gaps, and long ones.
#pragma once

#include <chrono>
#include <cstdint>

namespace phalanx::agent {

// Not thread-safe.
class LogBudget {
 public:
  using SteadyTime = std::chrono::steady_clock::time_point;

  // So many seconds' worth at once.
  static constexpr int64_t kSecondsAtOnce = 8;

  // 0: no limit.
  LogBudget(int64_t bytes_per_second, SteadyTime now)
      : rate_(bytes_per_second), bytes_(kSecondsAtOnce * bytes_per_second), at_(now) {}

  // Whether so many bytes may be written; else they are dropped.
  bool Take(int64_t bytes, SteadyTime now);

 private:
  const int64_t rate_;
  int64_t bytes_;
  SteadyTime at_;  // when bytes_ was so many
  bool drops_ = false;
};

}  // namespace phalanx::agent

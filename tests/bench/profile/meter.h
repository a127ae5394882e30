// tests/bench/profile/meter.h: seconds and joules of a call on the current GPU, at two clocks.
//
// The higher clock is that of short bursts with pauses, so that the mean power is far below the
// limit; the lower one is what the limit leaves of it while the call runs without pauses. No clock
// is ever set. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "tests/bench/board/board.h"

namespace phalanx::bench {

// Seconds of the device for so many calls, which enqueue work on the current stream; `busy` is
// called while it works.
double Burst(
    const std::function<void()>& call, int64_t calls, const std::function<void()>& busy = [] {});

struct Point {
  double clock_mhz = 0, seconds = 0, joules = 0;  // of one call
};
struct Points {
  Point fast, slow;
};

// Mean power from a counter that moves some ten times a second: between two of its moves.
class PowerBetweenMoves {
 public:
  // A counter that has not moved twice by then does not count what a call takes.
  static constexpr double kPatience = 2;  // seconds

  explicit PowerBetweenMoves(const Board& board);

  // To be called more often than it moves.
  void Look();
  bool is_known() const { return moves_ > 1; }
  // Throws c10::Error before the second move.
  double watts() const;

 private:
  const Board& board_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double joules_, first_joules_ = 0;
  double first_ = 0, last_ = 0;  // seconds
  int64_t moves_ = 0;
};

class Meter {
 public:
  // `seconds`: of each run, two for a call.
  Meter(const Board& board, double seconds);

  // Of a device that has just worked and waits.
  double idle_watts() const { return idle_watts_; }
  double hottest_celsius() const { return hottest_; }
  // `call` enqueues work on the current stream.
  Points Measure(const std::function<void()>& call);
  // The same without pauses alone: the slow point of Measure.
  Point Sustained(const std::function<void()>& call);

 private:
  // `pause`: of the time of each burst.
  Point Run(const std::function<void()>& call, double call_seconds, double burst, double pause);

  const Board& board_;
  const double seconds_;
  double idle_watts_ = 0, hottest_ = 0;
};

// Whether the limit slows the call down by enough to tell its two clocks apart.
bool HasTwoClocks(const Points& points);
// What a call takes at another clock (core/schedule/power.h), from both points; without two clocks
// what it takes at the one that it has.
Point At(const Points& points, double clock_mhz, double idle_watts);

}  // namespace phalanx::bench

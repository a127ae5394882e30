#include "tests/bench/profile/meter.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "core/schedule/power.h"

namespace phalanx::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kShortBurst = 4e-3, kLongBurst = 20e-3;  // seconds
constexpr double kPause = 3;                              // of a burst's time
// What is nearer to each other than this is one clock: between two such points lies noise.
constexpr double kOneClock = 0.05;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void Pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

PowerBetweenMoves::PowerBetweenMoves(const Board& board) : board_(board), joules_(board.Joules()) {}

void PowerBetweenMoves::Look() {
  const double now = board_.Joules();
  if (now == joules_) return;
  joules_ = now;
  last_ = Since(begin_);
  if (moves_++ > 0) return;
  first_ = last_;
  first_joules_ = now;
}

double PowerBetweenMoves::watts() const {
  TORCH_CHECK(is_known(), "the board's counter of joules moved less than twice in ", Since(begin_),
              " s");
  return (joules_ - first_joules_) / (last_ - first_);
}

double Burst(const std::function<void()>& call, int64_t calls, const std::function<void()>& busy) {
  const c10::impl::VirtualGuardImpl device(at::kCUDA);
  const c10::Stream stream = device.getStream(device.getDevice());
  c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  for (int64_t i = 0; i < calls; ++i) call();
  end.record(stream);
  busy();
  end.synchronize();
  return 1e-3 * begin.elapsedTime(end);
}

Meter::Meter(const Board& board, double seconds) : board_(board), seconds_(seconds) {
  const at::Tensor warm =
      at::randn({4096, 4096}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  Burst([&] { at::mm(warm, warm); }, 500);
  Pause(0.2);  // the clock falls
  PowerBetweenMoves power(board_);
  for (const auto begin = Clock::now(); Since(begin) < std::max(1.0, seconds_);) {
    Pause(2e-3);
    power.Look();
  }
  idle_watts_ = power.watts();
}

Point Meter::Run(const std::function<void()>& call, double call_seconds, double burst,
                 double pause) {
  const auto calls = std::max<int64_t>(1, std::llround(burst / call_seconds));
  double clocks = 0, busy = 0;
  int64_t bursts = 0;
  const auto one = [&](PowerBetweenMoves& power) {
    busy += Burst(call, calls, [&] {  // the device does not wait for the board's answers
      clocks += board_.ClockMhz();
      power.Look();
    });
    ++bursts;
    if (pause > 0) Pause(pause * burst);
  };
  PowerBetweenMoves before(board_);
  // The board follows its power in some tenths of a second.
  for (const auto begin = Clock::now(); Since(begin) < seconds_ / 3;) one(before);
  clocks = busy = 0;
  bursts = 0;
  PowerBetweenMoves power(board_);
  const auto begin = Clock::now();
  while (Since(begin) < seconds_ * 2 / 3 ||
         (!power.is_known() && Since(begin) < PowerBetweenMoves::kPatience)) {
    one(power);
  }
  const double seconds = Since(begin), waited = std::max(0.0, seconds - busy);
  hottest_ = std::max(hottest_, board_.TemperatureCelsius());
  const auto all = static_cast<double>(calls * bursts);
  return {clocks / static_cast<double>(bursts), busy / all,
          (power.watts() * seconds - idle_watts_ * waited) / all};
}

Point Meter::Sustained(const std::function<void()>& call) {
  Burst(call, 2);
  return Run(call, Burst(call, 4) / 4, kLongBurst, 0);
}

Points Meter::Measure(const std::function<void()>& call) {
  Burst(call, 2);
  const double seconds = Burst(call, 4) / 4;
  Points points;
  points.fast = Run(call, seconds, kShortBurst, kPause);
  points.slow = Run(call, seconds, kLongBurst, 0);
  return points;
}

bool HasTwoClocks(const Points& points) {
  return points.fast.clock_mhz > points.slow.clock_mhz * (1 + kOneClock);
}

Point At(const Points& points, double clock_mhz, double idle_watts) {
  const Point &fast = points.fast, &slow = points.slow;
  const double fast_dynamic = std::max(0.0, fast.joules - idle_watts * fast.seconds);
  double seconds = fast.seconds, dynamic = fast_dynamic;
  if (HasTwoClocks(points)) {
    const schedule::ClockRange range = {.fast_mhz = fast.clock_mhz, .slow_mhz = slow.clock_mhz};
    seconds = schedule::SecondsAt(range, clock_mhz, fast.seconds, slow.seconds);
    const double slow_dynamic = slow.joules - idle_watts * slow.seconds;
    const double square = std::max(0.0, fast_dynamic - slow_dynamic) /
                          (fast.clock_mhz * fast.clock_mhz - slow.clock_mhz * slow.clock_mhz);
    dynamic -= square * (fast.clock_mhz * fast.clock_mhz - clock_mhz * clock_mhz);
  }
  return {clock_mhz, seconds, idle_watts * seconds + std::max(0.0, dynamic)};
}

}  // namespace phalanx::bench

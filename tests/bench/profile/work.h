// tests/bench/profile/work.h: what a profile holds of one GPU, measured call by call, by the
// functions that training calls.
#pragma once

#include <cstdint>
#include <vector>

#include "core/schedule/profile.h"
#include "tests/bench/profile/meter.h"

namespace phalanx::bench {

struct Product {
  double rows = 0, inputs = 0, outputs = 0;
  Points forward, input_gradient, weight_gradient, weight_gradient_written;
};
struct AttentionRun {
  double rows = 0, length = 0, heads = 0, head_size = 0;
  bool causal = false;
  Points forward, backward;
};
struct Work {
  std::vector<Product> products, fp8;  // fp8 empty: the device has none
  std::vector<AttentionRun> attention;
  Points memory;           // of a layer, between its products
  Points loss, embedding;  // of its head, and of its embedding's gradients
  Points cast, update;     // of kElements elements
};

// Calls of Meter::Measure that MeasureWork makes on a device with FP8.
int64_t MeasuresOfWork();
// On the current GPU, all work of random values. Throws c10::Error.
Work MeasureWork(Meter& meter);
// Seconds of a kernel that does next to nothing, behind others.
double LaunchSeconds();

// The middle one of the clocks of all calls at their fast points, and of those that the limit slows
// down at their slow ones; `slow_mhz` 0: it slows none.
struct Clocks {
  double fast_mhz = 0, slow_mhz = 0;
};
Clocks ClocksOf(const Work& work);
// Everything at one clock, in seconds or in joules; `launch` is not filled.
schedule::WorkRates RatesAt(const Work& work, double clock_mhz, double idle_watts, bool joules);

}  // namespace phalanx::bench

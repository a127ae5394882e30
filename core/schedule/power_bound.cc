#include "core/schedule/power_bound.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/schedule/power.h"

namespace phalanx::schedule {
namespace {

// Of a clock f: seconds a + b / f, dynamic joules c + d * f^2.
struct OfClock {
  OfClock(const ClockRange& range, const WorkAtClocks& work)
      : b(std::max(0.0, work.slow_seconds - work.fast_seconds) /
          (1 / range.slow_mhz - 1 / range.fast_mhz)),
        a(work.fast_seconds - b / range.fast_mhz) {
    const double fast = work.fast_joules - range.idle_watts * work.fast_seconds;
    const double slow = work.slow_joules - range.idle_watts * work.slow_seconds;
    const double squares = range.fast_mhz * range.fast_mhz - range.slow_mhz * range.slow_mhz;
    d = std::max(0.0, fast - slow) / squares;
    c = fast - d * range.fast_mhz * range.fast_mhz;
  }
  double Seconds(double f) const { return a + b / f; }
  double Joules(double f) const { return c + d * f * f; }

  double b, a, c = 0, d = 0;
};

// How LeastWithinLimit weighs seconds against joules.
struct Weighing {
  ClockRange range;
  double mean = 1;  // of t(f), against the other; 1/2 to 1

  double budget() const { return range.limit_watts - range.idle_watts; }

  // So that the mean is least at the clock that this work alone would have.
  void FitTo(const WorkAtClocks& work) {
    const OfClock of(range, work);
    const auto keeps_up = [&](double f) {
      return of.Joules(f) <= budget() * (2 * of.Seconds(f) - work.fast_seconds);
    };
    if (keeps_up(range.fast_mhz)) return;
    double low = range.slow_mhz / 4, high = range.fast_mhz;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      (keeps_up(middle) ? low : high) = middle;
    }
    const double seconds = of.b / (low * low), joules = 2 * of.d * low / budget();
    if (seconds + joules > 0) mean = (seconds + joules) / (2 * seconds + joules);
  }

  double Least(const WorkAtClocks& work) const {
    const OfClock of(range, work);
    const double of_seconds = (2 * mean - 1) * of.b, of_joules = 2 * (1 - mean) * of.d / budget();
    double f = range.fast_mhz;
    if (of_joules > 0)
      f = std::clamp(std::cbrt(of_seconds / of_joules), range.slow_mhz / 4, range.fast_mhz);
    return (2 * mean - 1) * of.Seconds(f) +
           (1 - mean) * (work.fast_seconds + std::max(0.0, of.Joules(f)) / budget());
  }
};

// A second of each product's forward pass at the profile's clock.
WorkAtClocks ProductsOf(const DeviceProfile& profile) {
  const PowerRates& power = *profile.power;
  WorkAtClocks all;
  for (size_t i = 0; i < profile.products.size(); ++i) {
    const double seconds = profile.products[i].forward;
    all.fast_seconds += 1;
    all.slow_seconds += power.slow.products[i].forward / seconds;
    all.fast_joules += power.joules.products[i].forward / seconds;
    all.slow_joules += power.slow_joules.products[i].forward / seconds;
  }
  return all;
}

// Puts what `weighing` makes of it in the place of each entry.
class Reweigh {
 public:
  Reweigh(const DeviceProfile& profile, const Weighing& weighing, DeviceProfile& out)
      : power_(*profile.power), weighing_(weighing), out_(out) {}

  void All() {
    Products(out_.products, power_.slow.products, power_.joules.products,
             power_.slow_joules.products);
    if (out_.fp8.has_value()) {
      Products(out_.fp8->products, power_.slow.fp8->products, power_.joules.fp8->products,
               power_.slow_joules.fp8->products);
      Rate(out_.fp8->cast_bytes_per_second, power_.slow.fp8->cast_bytes_per_second,
           power_.joules.fp8->cast_bytes_per_second, power_.slow_joules.fp8->cast_bytes_per_second);
    }
    for (size_t i = 0; i < out_.attention.size(); ++i) {
      for (double AttentionTimes::*pass : {&AttentionTimes::forward, &AttentionTimes::backward}) {
        Entry(out_.attention[i].*pass, power_.slow.attention[i].*pass,
              power_.joules.attention[i].*pass, power_.slow_joules.attention[i].*pass);
      }
    }
    for (double WorkRates::*rate :
         {&WorkRates::memory_bytes_per_second, &WorkRates::update_bytes_per_second,
          &WorkRates::loss_bytes_per_second, &WorkRates::embedding_bytes_per_second})
      Rate(out_.*rate, power_.slow.*rate, power_.joules.*rate, power_.slow_joules.*rate);
    // Whoever waits for a launch or a link idles.
    out_.launch *= weighing_.mean;
    for (LinkRate* link : {&out_.message, &out_.collective}) {
      link->bytes_per_second /= weighing_.mean;
      link->latency *= weighing_.mean;
    }
    if (!out_.network.has_value()) return;
    out_.network->bytes_per_second /= weighing_.mean;
    out_.network->latency *= weighing_.mean;
  }

 private:
  void Entry(double& seconds, double slow_seconds, double joules, double slow_joules) const {
    if (seconds > 0) seconds = weighing_.Least({seconds, slow_seconds, joules, slow_joules});
  }
  // Of bytes in a second, or a joule.
  void Rate(double& rate, double slow, double joules, double slow_joules) const {
    if (rate > 0) rate = 1 / weighing_.Least({1 / rate, 1 / slow, 1 / joules, 1 / slow_joules});
  }
  void Products(std::vector<ProductTimes>& seconds, const std::vector<ProductTimes>& slow,
                const std::vector<ProductTimes>& joules,
                const std::vector<ProductTimes>& slow_joules) const {
    for (size_t i = 0; i < seconds.size(); ++i) {
      for (double ProductTimes::*pass :
           {&ProductTimes::forward, &ProductTimes::input_gradient, &ProductTimes::weight_gradient,
            &ProductTimes::weight_gradient_written})
        Entry(seconds[i].*pass, slow[i].*pass, joules[i].*pass, slow_joules[i].*pass);
    }
  }

  const PowerRates& power_;
  const Weighing& weighing_;
  DeviceProfile& out_;
};

}  // namespace

std::optional<DeviceProfile> LeastWithinLimit(const DeviceProfile& profile) {
  if (!profile.power.has_value()) return std::nullopt;
  Weighing weighing{.range = RangeOf(profile)};
  weighing.FitTo(ProductsOf(profile));
  if (weighing.mean == 1) return std::nullopt;
  DeviceProfile least = profile;
  Reweigh(profile, weighing, least).All();
  return least;
}

}  // namespace phalanx::schedule

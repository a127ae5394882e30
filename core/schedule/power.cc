#include "core/schedule/power.h"

#include <algorithm>
#include <utility>

#include "core/schedule/bound.h"
#include "core/schedule/order_rules.h"
#include "core/schedule/profile_cost.h"

namespace phalanx::schedule {
namespace {

// The same devices with other rates.
DeviceProfile WithRates(DeviceProfile profile, const WorkRates& rates) {
  static_cast<WorkRates&>(profile) = rates;
  return profile;
}

// Joules in the place of seconds: while a kernel is launched or a link is waited for, a device
// idles, but for what bytes of collectives take.
DeviceProfile InJoules(DeviceProfile profile, const WorkRates& joules, double launch) {
  const double idle = profile.power->idle_watts;
  for (LinkRate* link : {&profile.message, &profile.collective}) {
    link->bytes_per_second = 1 / (idle / link->bytes_per_second + link->joules_per_byte);
    link->latency *= idle;
  }
  profile.network.reset();
  profile = WithRates(std::move(profile), joules);
  profile.launch = launch * idle;
  return profile;
}

// Of a step of one part, whatever is taken in the place of seconds.
double OfStep(const Pipeline& pipeline, const Part& part, const PassSeconds& pass,
              const PartCost& cost) {
  return pipeline.microbatches * pass.total() +
         (part.trains.weights ? cost.update + cost.norm + cost.prepare : 0);
}

// Of [module][stage * chunks + chunk], const or not.
template <typename Parts>
auto& OfPart(Parts& parts, const Pipeline& pipeline, const Part& part) {
  const auto m = static_cast<size_t>(part.module);
  return parts[m][static_cast<size_t>(part.stage * pipeline.chunks[m] + part.chunk)];
}

// Beyond idling: of sums and gathers, which hide behind passes, and of what no pass waits for.
double JoulesBeside(const plan::UpdateBytes& bytes, const DeviceProfile& profile,
                    const WorkRates& rates, const WorkRates& joules) {
  const double carried = bytes.reduced + bytes.gathered + bytes.mirror_sums;
  return carried * profile.collective.joules_per_byte +
         bytes.mirror_updates * (1 / joules.update_bytes_per_second -
                                 profile.power->idle_watts / rates.update_bytes_per_second);
}

struct RatedWork {
  CostModel costs;
  std::vector<PassSeconds> parts;
};
RatedWork WorkUnder(const plan::Plan& plan, const Pipeline& pipeline, const DeviceProfile& profile,
                    int32_t items, const Updates& updates) {
  WorkModel model(plan.spec, profile, items);
  return {CostFromProfile(plan, profile, items, updates), PassesOf(plan, pipeline, model)};
}

// That all passes take at least.
double BoundOfPasses(const plan::Plan& plan, const Pipeline& pipeline,
                     const std::vector<PassSeconds>& passes) {
  std::vector<PartCost> seconds;
  for (const PassSeconds& pass : passes) {
    seconds.push_back({.forward = pass.forward,
                       .backward_input = pass.backward_input,
                       .backward_weight = pass.backward_weight});
  }
  return StepLowerBound(pipeline, seconds, BoundOptionsOf(plan, pipeline));
}

}  // namespace

ClockRange RangeOf(const DeviceProfile& profile) {
  return {.fast_mhz = profile.measured.clock_mhz,
          .slow_mhz = profile.power->slow_clock_mhz,
          .idle_watts = profile.power->idle_watts,
          .limit_watts = profile.measured.power_limit_watts};
}

double SecondsAt(const ClockRange& range, double clock_mhz, double fast_seconds,
                 double slow_seconds) {
  const double of_clock =
      std::max(0.0, slow_seconds - fast_seconds) / (1 / range.slow_mhz - 1 / range.fast_mhz);
  return fast_seconds + of_clock * (1 / clock_mhz - 1 / range.fast_mhz);
}

double SustainedClock(const ClockRange& range, const WorkAtClocks& work, double waiting_seconds) {
  const double fast_dynamic = work.fast_joules - range.idle_watts * work.fast_seconds;
  const double slow_dynamic = work.slow_joules - range.idle_watts * work.slow_seconds;
  const double square = std::max(0.0, fast_dynamic - slow_dynamic) /
                        (range.fast_mhz * range.fast_mhz - range.slow_mhz * range.slow_mhz);
  const auto keeps_up = [&](double clock) {
    const double dynamic =
        fast_dynamic - square * (range.fast_mhz * range.fast_mhz - clock * clock);
    const double seconds =
        SecondsAt(range, clock, work.fast_seconds, work.slow_seconds) + waiting_seconds;
    return dynamic <= (range.limit_watts - range.idle_watts) * seconds;
  };
  if (keeps_up(range.fast_mhz)) return range.fast_mhz;
  double low = range.slow_mhz / 4, high = range.fast_mhz;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (keeps_up(middle) ? low : high) = middle;
  }
  return low;
}

SustainedCosts::SustainedCosts(const plan::Plan& plan, const Pipeline& pipeline,
                               const DeviceProfile& profile, int32_t items, const Updates& updates)
    : clocks_(pipeline.classes.size(), profile.measured.clock_mhz) {
  RatedWork work = WorkUnder(plan, pipeline, profile, items, updates);
  costs_ = std::move(work.costs);
  parts_ = std::move(work.parts);
  if (profile.power.has_value()) Solve(plan, pipeline, profile, items, updates);
}

void SustainedCosts::Solve(const plan::Plan& plan, const Pipeline& pipeline,
                           const DeviceProfile& profile, int32_t items, const Updates& updates) {
  const PowerRates& power = *profile.power;
  const auto under = [&](const DeviceProfile& rates) {
    return WorkUnder(plan, pipeline, rates, items, updates);
  };
  const RatedWork slow = under(WithRates(profile, power.slow));
  const RatedWork fast_joules = under(InJoules(profile, power.joules, profile.launch));
  const RatedWork slow_joules = under(InJoules(profile, power.slow_joules, power.slow.launch));
  const ClockRange range = RangeOf(profile);
  const double bound = BoundOfPasses(plan, pipeline, parts_);
  for (size_t i = 0; i < clocks_.size(); ++i) {
    WorkAtClocks work;
    double passes = 0;
    for (const int32_t index : pipeline.classes[i].parts) {
      const auto p = static_cast<size_t>(index);
      const Part& part = pipeline.parts[p];
      const auto of_step = [&](const CostModel& costs, const std::vector<PassSeconds>& parts) {
        return OfStep(pipeline, part, parts[p], OfPart(costs.parts, pipeline, part));
      };
      passes += pipeline.microbatches * parts_[p].total();
      work.fast_seconds += of_step(costs_, parts_);
      work.slow_seconds += of_step(slow.costs, slow.parts);
      work.fast_joules += of_step(fast_joules.costs, fast_joules.parts);
      work.slow_joules += of_step(slow_joules.costs, slow_joules.parts);
      // What runs beside passes takes their time and energy of its own.
      const auto hide = [&](const CostModel& costs, double& seconds, double& joules) {
        const PartCost& cost = OfPart(costs.parts, pipeline, part);
        if (!part.trains.weights || cost.slices.empty()) return;
        seconds -= cost.update;
        joules -= range.idle_watts * cost.update;
      };
      hide(costs_, work.fast_seconds, work.fast_joules);
      hide(slow.costs, work.slow_seconds, work.slow_joules);
      const plan::UpdateBytes& bytes = OfPart(updates, pipeline, part);
      work.fast_joules += JoulesBeside(bytes, profile, profile, power.joules);
      work.slow_joules += JoulesBeside(bytes, profile, power.slow, power.slow_joules);
    }
    clocks_[i] = SustainedClock(range, work, std::max(0.0, bound - passes));
  }
  SlowDown(pipeline, range, slow.costs, slow.parts);
}

void SustainedCosts::SlowDown(const Pipeline& pipeline, const ClockRange& range,
                              const CostModel& slow_costs,
                              const std::vector<PassSeconds>& slow_parts) {
  for (size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = pipeline.parts[p];
    double clock = range.fast_mhz;
    for (const int32_t index : part.classes)
      clock = std::min(clock, clocks_[static_cast<size_t>(index)]);
    const auto at = [&](double& seconds, double slow_seconds) {
      seconds = SecondsAt(range, clock, seconds, slow_seconds);
    };
    PassSeconds& pass = parts_[p];
    at(pass.forward, slow_parts[p].forward);
    at(pass.backward_input, slow_parts[p].backward_input);
    at(pass.backward_weight, slow_parts[p].backward_weight);
    at(pass.recompute, slow_parts[p].recompute);
    at(pass.tensor, slow_parts[p].tensor);
    PartCost& cost = OfPart(costs_.parts, pipeline, part);
    const PartCost& slow = OfPart(slow_costs.parts, pipeline, part);
    at(cost.forward, slow.forward);
    at(cost.backward_input, slow.backward_input);
    at(cost.backward_weight, slow.backward_weight);
    at(cost.update, slow.update);
    at(cost.norm, slow.norm);
    at(cost.prepare, slow.prepare);
    const auto m = static_cast<size_t>(part.module);
    const size_t index = p - static_cast<size_t>(pipeline.first_part[m]);
    for (size_t kind = 0; kind < costs_.replicas[m].kinds.size(); ++kind) {
      PartCost& here = costs_.replicas[m].kinds[kind].parts[index];
      const PartCost& slow_here = slow_costs.replicas[m].kinds[kind].parts[index];
      at(here.forward, slow_here.forward);
      at(here.backward_input, slow_here.backward_input);
      at(here.backward_weight, slow_here.backward_weight);
    }
  }
}

}  // namespace phalanx::schedule

#include "core/plan/speeds.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "core/plan/cost.h"

namespace phalanx::plan {
namespace {

// Relative time of one stage of a replica: of the rank that holds the largest share of each kind of
// units.
double TimeOf(const Plan& plan, int32_t module, int32_t pp, int32_t width) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const job::Architecture& architecture = plan.module_spec(module).architecture;
  if (!job::TraitsOf(architecture).known()) return 1.0 / width;
  const int64_t item = job::RowsOfItem(architecture);
  const auto rows = static_cast<double>(item > 0 ? item : architecture.context);
  double time = 0;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    time += PartCost(plan, {module, pp, chunk}, width, rows, rows).total();
  }
  return time;
}

// By (dp, pp): by how much longer their slowest places take.
std::map<std::pair<int32_t, int32_t>, double> SlownessOf(const ReplicaTable& replicas,
                                                         absl::Span<const SlowPlace> slow) {
  std::map<std::pair<int32_t, int32_t>, double> slowness;
  for (const SlowPlace& one : slow) {
    const std::optional<ReplicaTable::Position> at = replicas.PositionOf(one.place);
    if (!at.has_value() || one.pace < 1) continue;
    double& factor = slowness.try_emplace({at->dp, at->pp}, 1.0).first->second;
    factor = std::max(factor, static_cast<double>(kPaceOfOthers) / static_cast<double>(one.pace));
  }
  return slowness;
}

// What is dealt to the replicas of a module at a time.
int64_t DealtAtOnce(const Plan& plan, int32_t module) {
  const int64_t global = plan.spec.batch.global;
  if (module == plan.spec.language) return global;
  const int64_t micro = plan.layout.micro > 0 ? plan.layout.micro : plan.spec.batch.micro;
  return std::min(global, micro * plan.replicas(plan.spec.language).present_replicas());
}

// Lets the replica have one of `count` things, where all replicas as fast as it would: the others
// take floor(theirs / its) before it does.
void Raise(std::vector<int64_t>& speeds, size_t replica, int64_t count) {
  int64_t& own = speeds[replica];
  const auto taken_before = [&] {
    int64_t taken = 0;
    for (size_t dp = 0; dp < speeds.size(); ++dp) taken += dp == replica ? 0 : speeds[dp] / own;
    return taken;
  };
  while (own < kSpeedOfFastest && taken_before() >= count)
    own = std::min(kSpeedOfFastest, own + own / 8 + 1);
}

}  // namespace

std::vector<int64_t> SpeedsOf(const Plan& plan, int32_t module, const ReplicaTable& replicas,
                              absl::Span<const SlowPlace> slow) {
  const std::map<std::pair<int32_t, int32_t>, double> slowness = SlownessOf(replicas, slow);
  std::map<std::pair<int32_t, int32_t>, double> known;  // by pp, width
  const auto time_of = [&](int32_t dp) {
    double longest = 0;
    for (int32_t pp = 0; pp < replicas.stages(); ++pp) {
      const int32_t width = replicas.Width(dp, pp);
      const auto [time, first] = known.try_emplace({pp, width}, 0);
      if (first) time->second = TimeOf(plan, module, pp, width);
      const auto factor = slowness.find({dp, pp});
      longest = std::max(longest, time->second * (factor == slowness.end() ? 1.0 : factor->second));
    }
    return longest;
  };
  std::vector<double> times;
  double shortest = 0;
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    times.push_back(replicas.Present(dp) ? time_of(dp) : 0);
    if (times.back() > 0 && (shortest == 0 || times.back() < shortest)) shortest = times.back();
  }
  std::vector<int64_t> speeds;
  for (const double time : times) {
    const double relative = time > 0 ? shortest / time : 0;
    const int64_t speed = std::llround(relative * static_cast<double>(kSpeedOfFastest));
    speeds.push_back(time > 0 ? std::max<int64_t>(1, speed) : 0);
  }
  for (const auto& [slot, factor] : slowness) {
    const auto dp = static_cast<size_t>(slot.first);
    if (speeds[dp] > 0) Raise(speeds, dp, DealtAtOnce(plan, module));
  }
  const bool alike = std::all_of(speeds.begin(), speeds.end(),
                                 [](int64_t speed) { return speed == kSpeedOfFastest; });
  return alike ? std::vector<int64_t>() : speeds;
}

}  // namespace phalanx::plan

#include "core/plan/speeds.h"

#include <algorithm>
#include <cmath>
#include <map>
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

}  // namespace

std::vector<int64_t> SpeedsOf(const Plan& plan, int32_t module, const ReplicaTable& replicas) {
  std::map<std::pair<int32_t, int32_t>, double> known;  // by pp, width
  const auto time_of = [&](int32_t dp) {
    double longest = 0;
    for (int32_t pp = 0; pp < replicas.stages(); ++pp) {
      const int32_t width = replicas.Width(dp, pp);
      const auto [time, first] = known.try_emplace({pp, width}, 0);
      if (first) time->second = TimeOf(plan, module, pp, width);
      longest = std::max(longest, time->second);
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
    speeds.push_back(std::llround(relative * static_cast<double>(kSpeedOfFastest)));
  }
  const bool alike = std::all_of(speeds.begin(), speeds.end(),
                                 [](int64_t speed) { return speed == kSpeedOfFastest; });
  return alike ? std::vector<int64_t>() : speeds;
}

}  // namespace phalanx::plan

#include "tests/bench/heartbeats/demands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {

void Demands::Settle(benchmark::State& state) const {
  if (broken_.empty()) return;
  std::vector<std::string> counters;
  for (const auto& [name, counter] : state.counters)
    counters.push_back(absl::StrCat(name, " ", counter.value));
  state.SkipWithError(
      absl::StrCat(absl::StrJoin(broken_, "; "), " (", absl::StrJoin(counters, ", "), ")").c_str());
}

double ReportMilliseconds(benchmark::State& state, const std::string& name,
                          std::vector<double> milliseconds) {
  support::Require(!milliseconds.empty(), name + ": nothing was measured");
  std::sort(milliseconds.begin(), milliseconds.end());
  const std::string prefix = name.empty() ? "" : name + "_";
  const double p99 = milliseconds[(milliseconds.size() * 99 + 99) / 100 - 1];
  state.counters[prefix + "p50_ms"] = milliseconds[milliseconds.size() / 2];
  state.counters[prefix + "p99_ms"] = p99;
  state.counters[prefix + "max_ms"] = milliseconds.back();
  return p99;
}

}  // namespace phalanx::coordinator

#include "tests/sim/scale/static_losses.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "core/base/prng.h"
#include "core/plan/loss.h"
#include "tests/sim/scale/throughput.h"

namespace phalanx::scale {
namespace {

// The same for every policy.
plan::RankList Draw(int32_t ranks, int32_t lost, uint64_t seed) {
  Prng prng(seed);
  std::set<Rank> drawn;
  while (drawn.size() < static_cast<size_t>(lost))
    drawn.insert(Rank{static_cast<int32_t>(prng.Below(static_cast<uint64_t>(ranks)))});
  return {drawn.begin(), drawn.end()};
}

// One for each number of samples.
std::vector<std::unique_ptr<Yardstick>> Yardsticks(const Workload& workload, Policy policy,
                                                   const std::vector<int64_t>& samples) {
  std::vector<std::unique_ptr<Yardstick>> all;
  for (const int64_t count : samples) {
    all.push_back(
        std::make_unique<Yardstick>(SpecOf(Document(workload, policy, "one", workload.dp, count))));
  }
  return all;
}

StaticRow LoseAt(const Workload& workload, Policy policy, double failed,
                 std::vector<std::unique_ptr<Yardstick>>& yardsticks, int32_t draws,
                 uint64_t seed) {
  StaticRow row{
      .policy = policy,
      .failed = failed,
      .lost = std::max(1, static_cast<int32_t>(std::lround(failed * workload.job_ranks()))),
      .narrowest = workload.tp,
      .step_lost = std::vector<double>(yardsticks.size())};
  for (int32_t draw = 0; draw < draws; ++draw) {
    const plan::RankList lost =
        Draw(workload.job_ranks(), row.lost, Hash64(seed, 1, static_cast<uint64_t>(draw)));
    const absl::StatusOr<plan::NextLayout> next =
        plan::LayoutAfter(yardsticks[0]->healthy(), {.lost = lost});
    if (!next.ok()) {
      std::fprintf(stderr, "no layout is left: %s\n", next.status().ToString().c_str());
      std::abort();
    }
    for (size_t i = 0; i < yardsticks.size(); ++i) {
      const Throughput left = yardsticks[i]->Measure(next->layout);
      row.step_lost[i] += (1 - yardsticks[i]->healthy_step() / left.step) / draws;
      if (i > 0) continue;
      row.replicas += static_cast<double>(left.replicas) / draws;
      row.narrowed += static_cast<double>(left.narrowed) / draws;
      row.narrowest = std::min(row.narrowest, left.narrowest);
      row.work_lost += (1 - left.work) / draws;
    }
  }
  return row;
}

}  // namespace

std::vector<StaticRow> LoseAtRandom(const Workload& workload, const std::vector<Policy>& policies,
                                    const std::vector<double>& shares,
                                    const std::vector<int64_t>& samples, int32_t draws,
                                    uint64_t seed) {
  std::vector<StaticRow> rows;
  for (const Policy policy : policies) {
    auto yardsticks = Yardsticks(workload, policy, samples);
    for (const double failed : shares)
      rows.push_back(LoseAt(workload, policy, failed, yardsticks, draws, seed));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const StaticRow& a, const StaticRow& b) { return a.failed < b.failed; });
  return rows;
}

}  // namespace phalanx::scale

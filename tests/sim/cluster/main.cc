// phalanx-sim: a simulated cluster for as long as one likes.
//
//   phalanx-sim --seed 1 --hours 1000 --nodes 64 --fault-interval 356s --step 10s --steps 2000
//   phalanx-sim --seed 1 --seeds 1000
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/sim/cluster/cluster.h"

namespace {

using phalanx::sim::Cluster;

absl::Duration DurationOf(const std::string& text) {
  absl::Duration duration;
  if (text.empty()) return absl::ZeroDuration();
  if (absl::ParseDuration(text, &duration)) return duration;
  std::fprintf(stderr, "%s is no duration such as 30s or 2h\n", text.c_str());
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 1, seeds = 1;
  double hours = 1.0 / 6;
  int32_t nodes = 0;
  int64_t steps = 0, lines = 100;
  bool keep_going = false, only_crashes = false, no_reserve = false, unmanaged = false;
  bool no_copies = false;
  std::string interval, step, loss;
  CLI::App app("A simulated cluster under random faults: real coordinator, daemons and planner.");
  app.add_option("--seed", seed, "Of all chance");
  app.add_option("--seeds", seeds, "So many, one after the other");
  app.add_option("--hours", hours, "Simulated, of each seed, with faults");
  app.add_option("--nodes", nodes, "0: drawn, at most 5");
  app.add_option("--fault-interval", interval, "Between faults of the whole cluster, on average");
  app.add_option("--loss-interval", loss,
                 "Between messages of ranks that are lost without a word, on average; none");
  app.add_option("--step", step, "Of training, on average");
  app.add_option("--steps", steps, "Of each job; 0: drawn");
  app.add_flag("--only-crashes", only_crashes,
               "The one fault is that the coordinator dies: no rank may be lost");
  app.add_flag("--keep-going", keep_going, "Past seeds that fail, of which one line is said");
  app.add_flag("--no-reserve", no_reserve, "Operators keep no nodes in reserve");
  app.add_flag("--no-copies", no_copies,
               "No rank keeps copies of its state in host memory, and jobs are those of before");
  app.add_flag("--unmanaged", unmanaged,
               "Nobody suspends, resumes or deletes jobs, nor takes nodes out of service");
  app.add_option("--lines", lines, "Of the trace of a seed that fails");
  CLI11_PARSE(app, argc, argv);

  phalanx::sim::Planner planner;
  Cluster::Counts total;
  std::map<std::string, int64_t> failures;
  const absl::Time begin = absl::Now();
  bool failed = false;
  for (uint64_t end = seed + seeds; seed < end; ++seed) {
    Cluster cluster(planner, {.seed = seed,
                              .nodes = nodes,
                              .fault_interval = DurationOf(interval),
                              .step_time = DurationOf(step),
                              .steps = steps,
                              .only_crashes = only_crashes,
                              .reserves = !no_reserve,
                              .manages = !unmanaged,
                              .copies = !no_copies,
                              .loss_interval = DurationOf(loss)});
    cluster.Run(absl::Hours(1) * hours);
    cluster.Settle();
    total += cluster.counts();
    for (const auto& [kind, times] : cluster.failures()) failures[kind] += times;
    if (cluster.violations().empty()) continue;
    failed = true;
    if (keep_going) {
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                  cluster.violations().front().c_str());
      continue;
    }
    std::printf("%s", cluster.Describe(static_cast<size_t>(lines)).c_str());
    return 1;
  }
  std::printf("%s\n", total.ToString().c_str());
  for (const auto& [kind, times] : failures)
    std::printf("  %lld jobs: %s\n", static_cast<long long>(times), kind.c_str());
  std::printf("%.1f s\n", absl::ToDoubleSeconds(absl::Now() - begin));
  return failed ? 1 : 0;
}

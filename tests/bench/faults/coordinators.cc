#include "tests/bench/faults/coordinators.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "nlohmann/json.hpp"
#include "tests/bench/faults/percentile.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/load.h"
#include "tests/e2e/jobs/submitter.h"
#include "tests/support/etcd.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr double kBackMaxMilliseconds = 5000;

// One kill of so many falls anywhere in the life of a short job; the others into starts and
// streams.
constexpr int64_t kShortEvery = 10;
constexpr absl::Duration kShortLife = absl::Seconds(2);

// For how long the coordinator may live on before kill number `kill`.
absl::Duration LifeBefore(int64_t kill, absl::Duration usual, Load& load, Prng& prng) {
  const bool takes_short = kill % kShortEvery == 0;
  if (takes_short) load.SubmitShort();
  const int64_t most = absl::ToInt64Microseconds(takes_short ? kShortLife : usual);
  return absl::Microseconds(static_cast<int64_t>(prng.Below(static_cast<uint64_t>(most))));
}

// Prints what became of it. `back`: after each kill, the milliseconds until somebody served again.
void Print(const char* benchmark, const Outcome& outcome, std::vector<double> back) {
  std::sort(back.begin(), back.end());
  const Acknowledged& acknowledged = outcome.acknowledged;
  const Kept& kept = outcome.kept;
  int64_t joined = 0, revoked = 0;
  for (const auto& [id, token] : acknowledged.tokens) {
    joined += token.joined;
    revoked += token.revoked;
  }
  const nlohmann::ordered_json line = {{"benchmark", benchmark},
                                       {"kills", back.size()},
                                       {"submits", acknowledged.submits.size()},
                                       {"missing", kept.missing},
                                       {"doubled", kept.doubled},
                                       {"cancels", acknowledged.cancels.size()},
                                       {"cancels_missing", kept.cancels_missing},
                                       {"deletes", acknowledged.deletes.size()},
                                       {"deletes_unsure", acknowledged.deletes_unsure.size()},
                                       {"deletes_missing", kept.deletes_missing},
                                       {"suspends", acknowledged.suspends.size()},
                                       {"suspends_missing", kept.suspends_missing},
                                       {"resumes", acknowledged.resumes.size()},
                                       {"resumes_missing", kept.resumes_missing},
                                       {"marks", acknowledged.marks},
                                       {"drains", acknowledged.drains},
                                       {"marks_missing", kept.marks_missing},
                                       {"reserves", acknowledged.reserves},
                                       {"reserves_missing", kept.reserves_missing},
                                       {"tokens", acknowledged.tokens.size()},
                                       {"joined", joined},
                                       {"revoked", revoked},
                                       {"tokens_missing", kept.tokens_missing},
                                       {"refused", kept.refused},
                                       {"short_jobs", outcome.short_jobs},
                                       {"short_jobs_wrong", outcome.short_jobs_wrong},
                                       {"short_ranks_again", outcome.short_ranks_again},
                                       {"steps", outcome.steps},
                                       {"step_fault", outcome.step_fault},
                                       {"epoch", outcome.epoch},
                                       {"ranks_lost", outcome.ranks_lost},
                                       {"back_p50_ms", Percentile(back, 0.5)},
                                       {"back_max_ms", back.back()}};
  std::printf("%s\n", line.dump().c_str());
}

double MillisecondsSince(absl::Time killed) {
  return absl::ToDoubleMilliseconds(absl::Now() - killed);
}

}  // namespace

bool KillCoordinators(int64_t kills) {
  Load load;
  Cluster& cluster = load.cluster();
  Prng prng(2);
  std::vector<double> back;
  for (int64_t i = 0; i < kills; ++i) {
    // Anywhere between the start and some hundred commits later.
    const absl::Duration life = LifeBefore(i, absl::Milliseconds(150), load, prng);
    cluster.coordinator().watch().AwaitEnd(life);
    cluster.KillCoordinator();
    const absl::Time killed = absl::Now();
    cluster.StartCoordinator();
    back.push_back(MillisecondsSince(killed));
  }
  const Outcome outcome = load.Finish();
  Print("coordinator_kills", outcome, std::move(back));
  return outcome.good();
}

bool KillLeaders(int64_t kills) {
  support::Require(support::EtcdMissing().empty(), support::EtcdMissing());
  Load load({.store = support::SharedEtcd().NewPlace(), .coordinators = 2});
  Cluster& cluster = load.cluster();
  Prng prng(2);
  std::vector<double> back;
  for (int64_t i = 0; i < kills; ++i) {
    const size_t leader = cluster.AwaitLeader();
    const absl::Duration life = LifeBefore(i, absl::Milliseconds(500), load, prng);
    cluster.coordinator(leader).watch().AwaitEnd(life);
    const absl::Time killed = absl::Now();
    cluster.KillCoordinator(leader);
    load.AwaitWorkers();
    back.push_back(MillisecondsSince(killed));
    cluster.StartCoordinator("phalanx-coordinator", leader);
  }
  const double longest = *std::max_element(back.begin(), back.end());
  const Outcome outcome = load.Finish();
  Print("leader_kills", outcome, std::move(back));
  return outcome.good() && longest < kBackMaxMilliseconds;
}

}  // namespace phalanx::e2e

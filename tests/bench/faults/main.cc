// phalanx-bench-faults: what faults cost, and whether anything is lost, with the real processes.
//
//   phalanx-bench-faults NAME [COUNT]
//   phalanx-bench-faults one-job [COUNT [JOBS]]
//
//   deaths         kill -9 of a process, until its parent knows
//   ranks          kill -9 of a rank, until a watcher has read "Failed"
//   recoveries     kill -9 of a rank of a job that goes on
//   one-job        the same again and again of a single job, then as many JOBS without losses, one
//                  after the other beside it (12; six at least, or nothing can be told)
//   returns        for how long ranks that train stand still for one that comes back
//   calm           minutes in which nothing fails, and much is slow or stands still
//   away           minutes for which a coordinator is away, and jobs lose ranks
//   coordinators   kill -9 of the coordinator under streams of everything that people and tools
//                  change, while a job trains and short ones come and go
//   leaders        the same of the leader of two over one etcd
//
// Each prints one line of JSON and exits with 0 if what must hold held, else with 1.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "nlohmann/json.hpp"
#include "tests/bench/faults/away.h"
#include "tests/bench/faults/calm.h"
#include "tests/bench/faults/coordinators.h"
#include "tests/bench/faults/deaths.h"
#include "tests/bench/faults/percentile.h"
#include "tests/bench/faults/recoveries.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr double kToldLimitMilliseconds = 500;  // p99

// A stream that is open before the fault, as a watcher's is.
class Watcher {
 public:
  Watcher(Cluster& cluster, int64_t job) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + support::kPatience));
    v1::WatchJobRequest request;
    request.set_job(absl::StrCat("job-", job));
    stream_ = cluster.stub().WatchJob(&context_, request);
  }
  v1::JobStatus AwaitStep(int64_t step) {
    while (Read().last_step().step() < step)
      support::Require(!IsTerminal(last_.phase()), last_.reason());
    return last_;
  }
  v1::JobStatus AwaitEnd() {
    while (!IsTerminal(Read().phase())) {
    }
    return last_;
  }

 private:
  const v1::JobStatus& Read() {
    v1::WatchJobResponse response;
    support::Require(stream_->Read(&response), "the stream ended");
    last_ = std::move(*response.mutable_job());
    return last_;
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream_;
  v1::JobStatus last_;
};

bool KillRanks(int64_t tries) {
  const DataFolder data = MakeData();
  Cluster cluster;
  Prng prng(1);
  std::vector<double> milliseconds;
  int64_t wrong = 0;
  for (int64_t i = 0; i < tries; ++i) {
    const v1::JobStatus job = cluster.Submit(Document(data, {.steps = kForEver,
                                                             .vision = "ranks: 2",
                                                             .language = "ranks: 4, tp: 2, pp: 2",
                                                             .recovery = kNoRecovery}));
    Watcher watcher(cluster, job.id());
    watcher.AwaitStep(1 + static_cast<int64_t>(prng.Below(10)));
    const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(job.id());
    const auto victim = std::next(ranks.begin(), static_cast<int64_t>(prng.Below(ranks.size())));
    const absl::Time killed = absl::Now();
    kill(victim->second.pid(), SIGKILL);
    const v1::JobStatus ended = watcher.AwaitEnd();
    milliseconds.push_back(absl::ToDoubleMilliseconds(absl::Now() - killed));
    const v1::FailureCause& failure = ended.failure();
    wrong += ended.phase() != v1::JOB_PHASE_FAILED || failure.rank() != victim->first ||
             failure.signal() != 9;
    for (const auto& [rank, watch] : ranks) wrong += !watch.AwaitEnd();
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const double p99 = Percentile(milliseconds, 0.99);
  const nlohmann::ordered_json line = {{"benchmark", "rank_kill_to_watcher"},     {"tries", tries},
                                       {"p50_ms", Percentile(milliseconds, 0.5)}, {"p99_ms", p99},
                                       {"max_ms", milliseconds.back()},           {"wrong", wrong}};
  std::printf("%s\n", line.dump().c_str());
  return wrong == 0 && p99 <= kToldLimitMilliseconds;
}

int Main(int argc, char** argv) {
  struct Benchmark {
    int64_t count;
    bool (*run)(int64_t count);
    // In place of `run`, where there is a second number: how many jobs without losses.
    bool (*run_beside)(int64_t count, int64_t jobs) = nullptr;
  };
  const std::map<std::string, Benchmark> all = {
      {"deaths", {500, KnowDeaths}},           {"ranks", {200, KillRanks}},
      {"recoveries", {100, KillAndReturn}},    {"one-job", {100, nullptr, KillOneJob}},
      {"returns", {20, ReturnBesideTraining}}, {"calm", {10, LeaveAlone}},
      {"away", {10, LeaveWithoutCoordinator}}, {"coordinators", {100, KillCoordinators}},
      {"leaders", {100, KillLeaders}}};
  const auto usage = [&all] {
    const auto name = [](std::string* out, const auto& one) { out->append(one.first); };
    std::fprintf(stderr,
                 "usage: phalanx-bench-faults %s [COUNT]\n"
                 "       phalanx-bench-faults one-job [COUNT [JOBS]]\n",
                 absl::StrJoin(all, "|", name).c_str());
    return 2;
  };
  const auto chosen = all.find(argc >= 2 ? argv[1] : "");
  if (chosen == all.end()) return usage();
  const Benchmark& benchmark = chosen->second;
  if (argc > (benchmark.run_beside != nullptr ? 4 : 3)) return usage();
  int64_t count = benchmark.count, jobs = kJobsBeside;
  if (argc >= 3 && (!absl::SimpleAtoi(argv[2], &count) || count < 1)) return usage();
  if (argc == 4 && (!absl::SimpleAtoi(argv[3], &jobs) || jobs < 1)) return usage();
  try {
    const bool right =
        benchmark.run_beside != nullptr ? benchmark.run_beside(count, jobs) : benchmark.run(count);
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace phalanx::e2e

int main(int argc, char** argv) { return phalanx::e2e::Main(argc, argv); }

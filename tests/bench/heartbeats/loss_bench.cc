// A rank of a job is lost where many nodes are there: how long behind its daemon's report until the
// last node of the job is told, over mutual TLS, while all nodes send heartbeats once a second,
// each over a connection of its own. All nodes have eight GPUs; a job has all devices of so many of
// them, and the other ranks of the node that lost one are survivors, too. A job that recovers has a
// ladder of drop-replica: its nodes are told the layout without that replica, which is planned
// first; those of another job are told to stop.
//
// `cores` is phalanx-coordinator alone, `client_cores` this process: all nodes, whose threads are
// told. It fails where a session is lost; of kManyNodes nodes or more also where one loss of a
// hundred takes 250 ms or longer.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "tests/bench/heartbeats/demands.h"
#include "tests/bench/heartbeats/fleet.h"
#include "tests/bench/heartbeats/jobs.h"
#include "tests/bench/heartbeats/nodes.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int32_t kDevices = 8;
constexpr int64_t kManyNodes = 1000;
constexpr double kP99MsMax = 250;

int LossesOf(int64_t nodes) { return nodes >= kManyNodes ? 100 : 5; }

// When the nodes of a job are told of a loss. Thread-safe.
class Survivors {
 public:
  // From now on they are of this job. `recovers`: they are told another epoch, not to stop.
  void Expect(int64_t job, bool recovers) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    job_ = job;
    recovers_ = recovers;
    told_.clear();
  }
  void Note(const std::string& node, const v1::Command& command) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Time now = absl::Now();
    MutexLock lock(&mu_);
    const bool tells = recovers_ ? command.assign().job() == job_ && command.assign().epoch() > 1
                                 : command.stop().job() == job_;
    if (!tells || !told_.insert(node).second) return;
    last_ = now;
    changed_.SignalAll();
  }
  // When the last of so many was.
  absl::Time Await(size_t nodes) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto end =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
    MutexLock lock(&mu_);
    while (told_.size() < nodes) {
      const bool late = changed_.WaitUntil(&mu_, end);
      support::Require(!late, absl::StrCat("of ", nodes, " nodes ", told_.size(), " are told"));
    }
    return last_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t job_ ABSL_GUARDED_BY(mu_) = -1;
  bool recovers_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::string> told_ ABSL_GUARDED_BY(mu_);
  absl::Time last_ ABSL_GUARDED_BY(mu_);
};

// Milliseconds that one loss took.
double LoseRank(const Fleet& fleet, Jobs& jobs, Survivors& survivors, int64_t nodes_of_job,
                bool recovers, int number) {
  const auto ranks = static_cast<int32_t>(nodes_of_job) * kDevices;
  const int64_t job = jobs.Submit({.name = absl::StrCat("lost-", number),
                                   .ranks = ranks,
                                   .ladder = recovers ? "drop-replica" : ""});
  jobs.AwaitPhase(job, v1::JOB_PHASE_RUNNING);
  survivors.Expect(job, recovers);
  const absl::Time start = fleet.Kill(job, 37 * number % ranks);
  const absl::Time last = survivors.Await(static_cast<size_t>(nodes_of_job));
  if (recovers) jobs.Cancel(job);
  jobs.AwaitPhase(job, recovers ? v1::JOB_PHASE_CANCELLED : v1::JOB_PHASE_FAILED);
  return absl::ToDoubleMilliseconds(last - start);
}

void LossOfARank(benchmark::State& state) {
  const int64_t nodes = state.range(0), nodes_of_job = state.range(1);
  const bool recovers = state.range(2) != 0;
  const support::Authority authority;
  const transport::TlsFiles files = authority.Coordinator();
  const CoordinatorProcess coordinator({"--heartbeat-interval", "1s", "--tls-ca", files.ca,
                                        "--tls-certificate", files.certificate, "--tls-key",
                                        files.key});
  NodeCertificates certificates(authority);
  Jobs jobs(coordinator.address(),
            transport::ClientCredentials(authority.User("bench", "submitter")));
  Survivors survivors;
  const Fleet fleet(coordinator.address(), nodes, &certificates,
                    {.device_kind = "gpu", .devices = kDevices},
                    [&survivors](const std::string& node, const v1::Command& command) {
                      survivors.Note(node, command);
                    });
  const Heartbeats heartbeats(fleet, {});
  std::vector<double> milliseconds;
  const double cpu = CpuSeconds(coordinator.pid()), own = CpuSeconds(getpid());
  const absl::Time start = absl::Now();
  for (auto _ : state) {
    for (int i = 0; i < LossesOf(nodes); ++i)
      milliseconds.push_back(LoseRank(fleet, jobs, survivors, nodes_of_job, recovers, i));
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  Demands demands;
  const double p99 = ReportMilliseconds(state, "", std::move(milliseconds));
  state.counters["cores"] = (CpuSeconds(coordinator.pid()) - cpu) / seconds;
  state.counters["client_cores"] = (CpuSeconds(getpid()) - own) / seconds;
  const auto lost = static_cast<double>(fleet.lost());
  demands.That(nodes < kManyNodes || p99 < kP99MsMax,
               absl::StrCat("one loss of a hundred takes ", p99, " ms or longer"));
  demands.That(lost == 0, absl::StrCat(lost, " sessions are lost"));
  demands.Settle(state);
}
// Nodes, those of the job, and whether it recovers. The last is for a quick look, and a test.
BENCHMARK(LossOfARank)
    ->ArgNames({"nodes", "of_job", "recovers"})
    ->Args({1000, 8, 0})
    ->Args({10'000, 8, 0})
    ->Args({10'000, 8, 1})
    ->Args({10'000, 1000, 0})
    ->Args({10'000, 1000, 1})
    ->Args({100, 8, 1})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

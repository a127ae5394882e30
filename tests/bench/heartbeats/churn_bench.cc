// Jobs come and go, over mutual TLS: each has four ranks on four of eight nodes, whose daemons do
// what they are told and send heartbeats; one in five is cancelled while it trains, the others do
// their ten steps. Ten people watch each job to its end, and its metrics are read every five
// seconds. Measured is what the coordinator holds of memory after each tenth of the jobs, in MB.
//
// It fails where a job, a watcher or a session fares otherwise; with kManyJobs or more also where
// the memory after the last tenth is 1.05 times that after the fifth, or more. An hour at 100 jobs
// a minute has 6,000; they may come faster.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/heartbeats/demands.h"
#include "tests/bench/heartbeats/fleet.h"
#include "tests/bench/heartbeats/jobs.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/bench/heartbeats/scrape.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr std::chrono::nanoseconds kMinute = std::chrono::minutes(1);
constexpr std::chrono::nanoseconds kScrapeInterval = std::chrono::seconds(5);
constexpr int64_t kNodes = 8, kSteps = 10, kCancelledOf = 5, kTenths = 10;
constexpr int32_t kRanks = 4;
constexpr int kWatchers = 10;
constexpr int64_t kManyJobs = 6000;
constexpr double kGrowthMax = 1.05;

void RunJob(const Fleet& fleet, Jobs& jobs, Watchers& watchers, int64_t number) {
  const int64_t job = jobs.Submit({.name = absl::StrCat("churn-", number),
                                   .ranks = kRanks,
                                   .steps = kSteps,
                                   .device_kind = "cpu"});
  watchers.Watch(job);
  jobs.AwaitPhase(job, v1::JOB_PHASE_RUNNING);
  const bool cancelled = number % kCancelledOf == kCancelledOf - 1;
  for (int64_t step = 1; step <= (cancelled ? kSteps / 2 : kSteps); ++step) fleet.Step(job, step);
  if (cancelled) {
    jobs.Cancel(job);
  } else {
    fleet.Succeed(job, kSteps);
  }
  jobs.AwaitPhase(job, cancelled ? v1::JOB_PHASE_CANCELLED : v1::JOB_PHASE_SUCCEEDED);
  watchers.AwaitEnds();
}

void Churn(benchmark::State& state) {
  const int64_t count = state.range(0), a_minute = state.range(1);
  const support::Authority authority;
  const transport::TlsFiles files = authority.Coordinator();
  const transport::TlsFiles viewer = authority.User("viewer", "viewer");
  std::vector<std::string> flags = {
      "--heartbeat-interval", "1s",        "--tls-ca", files.ca, "--tls-certificate",
      files.certificate,      "--tls-key", files.key};
  // As fast as they go they are more calls than one person may make.
  if (a_minute == 0) flags.insert(flags.end(), {"--calls-per-second", "0"});
  const CoordinatorProcess coordinator(flags);
  NodeCertificates certificates(authority);
  const Fleet fleet(coordinator.address(), kNodes, &certificates,
                    {.device_kind = "cpu", .devices = 1});
  const Heartbeats heartbeats(fleet, {});
  Jobs jobs(coordinator.address(),
            transport::ClientCredentials(authority.User("owner", "submitter")));
  Watchers watchers(coordinator.address(), viewer, kWatchers);
  Scraper scraper(coordinator.http_address(), viewer, kScrapeInterval);
  double middle = 0, last = 0;
  const double own = CpuSeconds(getpid());
  for (auto _ : state) {
    auto next = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) {
      if (a_minute > 0) std::this_thread::sleep_until(next += kMinute / a_minute);
      RunJob(fleet, jobs, watchers, i);
      if ((i + 1) % (count / kTenths) != 0) continue;
      last = static_cast<double>(ResidentBytes(coordinator.pid())) / 1e6;
      if (i + 1 == count / 2) middle = last;
      state.counters[absl::StrFormat("mb_%03d", (i + 1) * 100 / count)] = last;
    }
  }
  state.counters["coordinator_cpu_s"] = CpuSeconds(coordinator.pid());
  state.counters["client_cpu_s"] = CpuSeconds(getpid()) - own;
  state.counters["scrapes"] = static_cast<double>(scraper.reads());
  const auto lost = static_cast<double>(fleet.lost());
  Demands demands;
  demands.That(
      count < kManyJobs || last < kGrowthMax * middle,
      absl::StrCat("memory is ", last / middle, " times what it was after half of the jobs"));
  demands.That(lost == 0, absl::StrCat(lost, " sessions are lost"));
  demands.Settle(state);
}
// Jobs, and how many a minute; 0: as fast as they go. The last is for a quick look, and a test.
BENCHMARK(Churn)
    ->ArgNames({"jobs", "a_minute"})
    ->Args({kManyJobs, 0})
    ->Args({10 * kManyJobs, 0})
    ->Args({kManyJobs, 100})
    ->Args({50, 0})
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

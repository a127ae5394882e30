// Many watch one job: how long behind a step's report until the last watcher is told, each over a
// mutual TLS connection of its own. `cores` is phalanx-coordinator alone, `client_cores` this
// process: the watchers, and the node that reports.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "tests/bench/heartbeats/demands.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/support/job_text.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int kWatchersOfAPerson = 200;  // a person has 256 connections at most
constexpr int kManyWatchers = 1000;
constexpr int kStepsASecond = 5, kSeconds = 20, kFewSeconds = 2;
constexpr double kP99MsMax = 250;

// How many watchers know of which step.
class Seen {
 public:
  void Tell(int64_t before, int64_t step) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    // Steps may be skipped: who knows of one knows of those before it.
    for (int64_t i = before + 1; i <= step; ++i) {
      if (static_cast<size_t>(i) >= counts_.size()) counts_.resize(static_cast<size_t>(i) + 1);
      ++counts_[static_cast<size_t>(i)];
    }
    changed_.SignalAll();
  }
  // Until so many know of it.
  void Await(int64_t step, int watchers) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    const auto end =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
    const auto index = static_cast<size_t>(step);
    while (index >= counts_.size() || counts_[index] < watchers) {
      support::Require(!changed_.WaitUntil(&mu_, end), "a step is not told to all watchers");
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<int> counts_ ABSL_GUARDED_BY(mu_);
};

// Reads until it goes.
class Watcher {
 public:
  Watcher(const std::string& address, const transport::TlsFiles& files, Seen& seen)
      : stub_(v1::JobService::NewStub(grpc::CreateCustomChannel(
            address, transport::ClientCredentials(files), OwnConnection()))),
        thread_([this, &seen] {
          v1::WatchJobRequest request;
          request.set_job("watched");
          const auto stream = stub_->WatchJob(&context_, request);
          v1::WatchJobResponse response;
          int64_t last = -1;
          while (stream->Read(&response)) {
            const int64_t step = response.job().last_step().step();
            if (step > last) seen.Tell(last, step);
            last = std::max(last, step);
          }
        }) {}
  ~Watcher() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::JobService::Stub> stub_;
  std::jthread thread_;
};

v1::Assign StartJob(const std::string& address, const support::Authority& authority,
                    Member& member) {
  const auto jobs = v1::JobService::NewStub(grpc::CreateChannel(
      address, transport::ClientCredentials(authority.User("owner", "submitter"))));
  Submit(*jobs, support::JobText({.name = "watched", .steps = 100'000, .recovers = false}));
  v1::Assign assign = member.TakeAssignment();
  member.Ready(assign, 0);
  return assign;
}

void WatchersOfOneJob(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  const support::Authority authority;
  const transport::TlsFiles files = authority.Coordinator();
  const CoordinatorProcess coordinator(
      {"--tls-ca", files.ca, "--tls-certificate", files.certificate, "--tls-key", files.key});
  NodeCertificates certificates(authority);
  Member member(coordinator.address(), certificates.Of("node"), HelloOf("node", "cpu", 1));
  const v1::Assign assign = StartJob(coordinator.address(), authority, member);
  Seen seen;
  std::vector<std::unique_ptr<Watcher>> watchers;
  transport::TlsFiles person;
  for (int i = 0; i < count; ++i) {
    if (i % kWatchersOfAPerson == 0) {
      member.Heartbeat();
      person = authority.User(absl::StrCat("person-", i / kWatchersOfAPerson), "viewer");
    }
    watchers.push_back(std::make_unique<Watcher>(coordinator.address(), person, seen));
  }
  int64_t step = 1;
  member.Step(assign, step);
  seen.Await(step, count);  // all are connected
  const int steps = kStepsASecond * (count < kManyWatchers ? kFewSeconds : kSeconds);
  std::vector<double> milliseconds;
  const int64_t resident = ResidentBytes(coordinator.pid());
  const double cpu = CpuSeconds(coordinator.pid()), own = CpuSeconds(getpid());
  const absl::Time start = absl::Now();
  for (auto _ : state) {
    auto next = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) {
      const absl::Time told = absl::Now();
      member.Step(assign, ++step);
      seen.Await(step, count);
      milliseconds.push_back(absl::ToDoubleMilliseconds(absl::Now() - told));
      std::this_thread::sleep_until(next += std::chrono::milliseconds(1000 / kStepsASecond));
    }
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const double p99 = ReportMilliseconds(state, "last", std::move(milliseconds));
  state.counters["cores"] = (CpuSeconds(coordinator.pid()) - cpu) / seconds;
  state.counters["client_cores"] = (CpuSeconds(getpid()) - own) / seconds;
  state.counters["resident_mb"] = static_cast<double>(resident) / 1e6;
  Demands demands;
  demands.That(count < kManyWatchers || p99 < kP99MsMax,
               absl::StrCat("the last watcher is told of a step after ", p99, " ms or longer"));
  demands.Settle(state);
}
// The first is for a quick look, and a test.
BENCHMARK(WatchersOfOneJob)
    ->ArgNames({"watchers"})
    ->Args({50})
    ->Args({kManyWatchers})
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

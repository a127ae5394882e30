// Jobs come and go, each of one rank on one node that does what it is told: what the coordinator
// holds of memory after each tenth of them, in MB.
//
// An hour at 100 jobs a minute has 6,000; they may come faster.
#include <benchmark/benchmark.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/support/job_text.h"

namespace phalanx::coordinator {
namespace {

constexpr std::chrono::nanoseconds kMinute = std::chrono::minutes(1);

void RunJob(v1::JobService::Stub& jobs, Member& member, int64_t number) {
  Submit(jobs, support::JobText({.name = absl::StrCat("churn-", number), .recovers = false}));
  const v1::Assign assign = member.TakeAssignment();
  member.Ready(assign, 0);
  member.Succeed(assign, 0);
}

void Churn(benchmark::State& state) {
  const int64_t count = state.range(0), a_minute = state.range(1);
  const CoordinatorProcess coordinator({});
  Member member(coordinator.address(), grpc::InsecureChannelCredentials(),
                HelloOf("node", "cpu", 1));
  const auto jobs = v1::JobService::NewStub(
      grpc::CreateChannel(coordinator.address(), grpc::InsecureChannelCredentials()));
  for (auto _ : state) {
    auto next = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) {
      if (a_minute > 0) std::this_thread::sleep_until(next += kMinute / a_minute);
      RunJob(*jobs, member, i);
      if ((i + 1) % (count / 10) != 0) continue;
      state.counters[absl::StrFormat("mb_%03d", (i + 1) * 100 / count)] =
          static_cast<double>(ResidentBytes(coordinator.pid())) / 1e6;
    }
  }
  state.counters["coordinator_cpu_s"] = CpuSeconds(coordinator.pid());
}
// Jobs, and how many a minute; 0: as fast as they go.
BENCHMARK(Churn)
    ->ArgNames({"jobs", "a_minute"})
    ->Args({6000, 0})
    ->Args({60000, 0})
    ->Args({6000, 100})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

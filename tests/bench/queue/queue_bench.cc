// What a submit and its cancel cost the machine behind a queue of jobs that fit no cluster of 100
// nodes with 8 devices each, most of which are free.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

constexpr int kNodes = 100;

void SubmitAndCancel(benchmark::State& state) {
  Coordinator machine(CoordinatorOptions{.live_jobs_max = state.range(0) + 1});
  Instant now = absl::FromUnixSeconds(1'700'000'000);
  uint64_t token = 0, stored = 0;
  int64_t jobs = 0;
  const auto feed = [&](const Event& event) {
    benchmark::DoNotOptimize(machine.Step(now, event));
    if (machine.last_record() == stored) return;
    stored = machine.last_record();
    benchmark::DoNotOptimize(machine.Step(now, RecordStored{stored}));
  };
  const auto submit = [&] {
    const std::string name = absl::StrCat("job-", ++jobs);
    feed(SubmitRequested{Token{++token},
                         std::make_shared<const JobRequest>(
                             JobRequest{.document = {.text = "text", .directory = "/d"},
                                        .name = name,
                                        .steps = 10,
                                        .world = 100'000,
                                        .devices = 100'000}),
                         name});
  };
  for (int node = 1; node <= kNodes; ++node) {
    feed(SessionOpened{
        SessionId{static_cast<uint64_t>(node)},
        WorkerHello{
            .node = absl::StrCat("node-", node), .incarnation = Incarnation{1}, .devices = 8}});
  }
  for (int64_t i = 0; i < state.range(0); ++i) submit();
  for (auto _ : state) {
    submit();
    feed(CancelRequested{Token{++token}, JobId{jobs}});
    feed(JobArchived{JobId{jobs}});
  }
}
BENCHMARK(SubmitAndCancel)->Arg(0)->Arg(1000)->Arg(10'000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace phalanx::coordinator

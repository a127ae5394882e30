// What a submit and its cancel, and the question why a job waits, cost the machine behind a queue
// of jobs that fit no cluster of 100 (and 1,000) nodes with 8 devices each, most of which are free.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

// A coordinator with `nodes` nodes and `jobs` such jobs.
class Queue {
 public:
  Queue(int nodes, int64_t jobs) : machine_(CoordinatorOptions{.live_jobs_max = jobs + 1}) {
    for (int node = 1; node <= nodes; ++node) {
      Feed(SessionOpened{
          SessionId{static_cast<uint64_t>(node)},
          WorkerHello{
              .node = absl::StrCat("node-", node), .incarnation = Incarnation{1}, .devices = 8}});
    }
    for (int64_t i = 0; i < jobs; ++i) Submit();
  }
  void Feed(const Event& event) {
    benchmark::DoNotOptimize(machine_.Step(now_, event));
    if (machine_.NextDeadline() <= now_) {
      benchmark::DoNotOptimize(machine_.Step(now_, DeadlineReached{}));
    }
    if (machine_.last_record() == stored_) return;
    stored_ = machine_.last_record();
    benchmark::DoNotOptimize(machine_.Step(now_, RecordStored{stored_}));
  }
  // Returns its id.
  JobId Submit() {
    const std::string name = absl::StrCat("job-", ++jobs_);
    Feed(SubmitRequested{Token{++token_},
                         std::make_shared<const JobRequest>(
                             JobRequest{.document = {.text = "text", .directory = "/d"},
                                        .name = name,
                                        .steps = 10,
                                        .world = 100'000,
                                        .devices = 100'000}),
                         name});
    return JobId{jobs_};
  }
  Token NextToken() { return Token{++token_}; }

 private:
  Coordinator machine_;
  const Instant now_ = absl::FromUnixSeconds(1'700'000'000);
  uint64_t token_ = 0, stored_ = 0;
  int64_t jobs_ = 0;
};

void SubmitAndCancel(benchmark::State& state) {
  Queue queue(100, state.range(0));
  for (auto _ : state) {
    const JobId job = queue.Submit();
    queue.Feed(CancelRequested{queue.NextToken(), job});
    queue.Feed(JobArchived{job});
  }
}
BENCHMARK(SubmitAndCancel)->Arg(0)->Arg(1000)->Arg(10'000)->Unit(benchmark::kMicrosecond);

void Explain(benchmark::State& state) {
  Queue queue(1000, state.range(0));
  const JobId last = queue.Submit();
  for (auto _ : state) queue.Feed(ExplainRequested{queue.NextToken(), last});
}
BENCHMARK(Explain)->Arg(1000)->Arg(10'000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace phalanx::coordinator

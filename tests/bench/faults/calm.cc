#include "tests/bench/faults/calm.h"

#include <signal.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/recovery/held_reads.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr int kBusyThreads = 2;
constexpr absl::Duration kStop = absl::Seconds(2);
constexpr absl::Duration kHeldRead = absl::Seconds(20);
constexpr size_t kTurnsPerHeldRead = 8;

// Uses the processor as long as it lives.
class BusyLoops {
 public:
  BusyLoops() {
    for (std::thread& thread : threads_) {
      thread = std::thread([this] {
        while (!done_.load(std::memory_order_relaxed)) {
        }
      });
    }
  }
  ~BusyLoops() {
    done_.store(true, std::memory_order_relaxed);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> done_ = false;
  std::thread threads_[kBusyThreads];
};

// False: it ended meanwhile.
bool StopForAWhile(const support::ProcessWatch& watch) {
  kill(watch.pid(), SIGSTOP);
  const bool ended = watch.AwaitEnd(kStop);
  kill(watch.pid(), SIGCONT);
  return !ended;
}

JobOptions JobOfSixRanks() {
  return {.vision = "ranks: 2", .language = "ranks: 4, tp: 2", .batch = 6};
}

// An evaluation that takes longer than any step may, for its data do not come to one rank. False:
// it is not so, or there was an incident.
bool EvaluateSlowly(Cluster& cluster, const DataFolder& data, HeldReads& reads) {
  constexpr int64_t kSteps = 30;
  JobOptions options = JobOfSixRanks();
  options.name = options.output = "evaluates";
  options.steps = kSteps;
  options.validation = true;
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 1);
  const support::ProcessWatch watch(cluster.Ranks(job).begin()->second.pid());
  reads.Hold(watch.pid(), "validation-");
  cluster.AwaitStep(job, kSteps);
  const bool ended = watch.AwaitEnd(kHeldRead);
  reads.Release();
  const v1::JobStatus last = cluster.AwaitEnd(job);
  for (const v1::Incident& incident : cluster.Incidents(job))
    std::fprintf(stderr, "%s\n", incident.ShortDebugString().c_str());
  return !ended && last.phase() == v1::JOB_PHASE_SUCCEEDED && last.epoch() == 1 &&
         cluster.Incidents(job).empty();
}

}  // namespace

bool LeaveAlone(int64_t minutes) {
  const DataFolder data =
      MakeData({.samples = 30, .images_min = 1, .images_max = 3, .image_side = 1000, .words = 4});
  HeldReads reads;
  Cluster cluster({.devices = 2, .coordinator_flags = {"--allow-inject"}});
  std::vector<const support::Process*> daemons = {&cluster.worker()};
  for (const char* node : {"b", "c"}) daemons.push_back(&cluster.AddWorker(node, 2));
  JobOptions options = JobOfSixRanks();
  options.steps = kForEver;
  options.checkpoint = "{directory: checkpoints, every: 20}";
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 2);
  const BusyLoops busy;
  Prng prng(1);
  int64_t wrong = 0;
  int64_t stood_still = 0;  // for data that was held
  const auto rank = [&] {
    const auto ranks = cluster.Ranks(job);
    return std::next(ranks.begin(), static_cast<int64_t>(prng.Below(ranks.size())))->first;
  };
  const auto inject = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"inject", "--job", absl::StrCat("job-", job), "--rank",
                                          absl::StrCat(rank())};
    arguments.insert(arguments.end(), more.begin(), more.end());
    wrong += cluster.Phalanx(std::move(arguments)).exit_code != 0;
  };
  const std::vector<std::function<void()>> hardships = {
      [&] { wrong += !StopForAWhile(cluster.Ranks(job).at(rank())); },
      [&] { wrong += !StopForAWhile(daemons[prng.Below(daemons.size())]->watch()); },
      [&] { wrong += !StopForAWhile(cluster.coordinator().watch()); },
      [&] {
        inject({"--fault", "slow:3", "--for", "5s"});
      },
      [&] {
        inject({"--fault", "hang", "--phase", "checkpoint", "--for", "20s"});
      },
      [&] {
        const support::ProcessWatch watch(cluster.Ranks(job).at(rank()).pid());
        reads.Hold(watch.pid(), "set-");
        // What was read ahead is trained on first.
        wrong += watch.AwaitEnd(kHeldRead / 2);
        const int64_t step = cluster.Get(job).last_step().step();
        wrong += watch.AwaitEnd(kHeldRead / 2);
        stood_still += cluster.Get(job).last_step().step() == step;
        reads.Release();
      }};
  const absl::Time begin = absl::Now(), end = begin + absl::Minutes(minutes);
  int64_t done = 0;
  for (size_t turn = 0; absl::Now() < end; ++turn) {
    const size_t which = turn % hardships.size();
    // The last one takes longer than all others together, which are to come often.
    if (which + 1 == hardships.size() && turn / hardships.size() % kTurnsPerHeldRead != 0) continue;
    hardships[which]();
    ++done;
    const int64_t step = cluster.Get(job).last_step().step();
    cluster.AwaitStep(job, step + 3);
    std::fprintf(
        stderr, "%s\n",
        absl::StrCat(done, " hardships, step ", step, ", ",
                     absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Seconds(1))))
            .c_str());
  }
  const v1::JobStatus last = cluster.Get(job);
  const std::vector<v1::Incident> incidents = cluster.Incidents(job);
  for (const v1::Incident& incident : incidents)
    std::fprintf(stderr, "%s\n", incident.ShortDebugString().c_str());
  int64_t long_checkpoints = 0;  // of those asked for, which wait for the next checkpoint
  for (const v1::JobEvent& event : cluster.Events(job)) {
    const bool hangs = absl::StrContains(event.message(), ": hang at step ");
    long_checkpoints += event.type() == "FaultReached" && hangs ? 1 : 0;
  }
  cluster.Cancel(job);
  cluster.AwaitEnd(job);
  const bool evaluated = EvaluateSlowly(cluster, data, reads);
  const std::vector<Metric> metrics = ReadMetrics(data.path + "/out");
  const std::string fault = StepsFault(metrics, static_cast<int64_t>(metrics.size()));
  const nlohmann::ordered_json line = {{"benchmark", "no_false_alarm"},
                                       {"seconds", absl::ToDoubleSeconds(absl::Now() - begin)},
                                       {"hardships", done},
                                       {"long_checkpoints", long_checkpoints},
                                       {"stood_still_for_data", stood_still},
                                       {"evaluated_slowly", evaluated},
                                       {"wrong", wrong},
                                       {"steps", metrics.size()},
                                       {"step_fault", fault},
                                       {"epoch", last.epoch()},
                                       {"incidents", incidents.size()}};
  std::printf("%s\n", line.dump().c_str());
  const bool all_came = done < static_cast<int64_t>(hardships.size()) || stood_still > 0;
  return wrong == 0 && evaluated && long_checkpoints > 0 && all_came && fault.empty() &&
         last.epoch() == 1 && incidents.empty();
}

}  // namespace phalanx::e2e

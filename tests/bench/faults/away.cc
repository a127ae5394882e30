#include "tests/bench/faults/away.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr int32_t kRanks = 4;
constexpr int64_t kStepsAfter = 20;  // that each is to do once the coordinator is back
constexpr char kWhole[] = "whole";   // the job that is not hit

struct Job {
  std::string name, ladder;
  int32_t spares = 0;
  int32_t hit = -1;    // the rank that is killed
  bool again = false;  // a process takes its place
  int64_t id = 0;
  int64_t step = 0;  // the last one that the coordinator knew before
};

std::vector<Job> Jobs() {
  return {{.name = kWhole, .ladder = "drop-replica"},
          {.name = "shrink", .ladder = "shrink", .hit = 3},
          {.name = "drop", .ladder = "drop-replica", .hit = 0},
          {.name = "spare", .ladder = "spare", .spares = 1, .hit = 2, .again = true},
          {.name = "waits", .ladder = "wait", .hit = 1, .again = true},
          {.name = "ends", .hit = 3}};
}

class Away {
 public:
  Away() {
    for (Job& job : jobs_) {
      job.id =
          cluster_
              .Submit(Document(
                  data_, {.name = job.name,
                          .steps = kForEver,
                          .precision = "fp64",
                          .vision = "",
                          .language = "ranks: 4, tp: 2",
                          .learning_rate = 1e-5,
                          .minimum_learning_rate = 1e-5,
                          .recovery = absl::StrCat("{ladder: [", job.ladder, "], rejoin: manual}"),
                          .spares = job.spares,
                          .output = job.name}))
              .id();
    }
    for (Job& job : jobs_) job.step = cluster_.AwaitStep(job.id, 5).last_step().step();
  }

  void Leave(absl::Duration away) {
    cluster_.KillCoordinator();
    Say("the coordinator is away");
    Pass(away / 2);
    for (const Job& job : jobs_)
      if (job.hit >= 0) kill(cluster_.Ranks(job.id).at(job.hit).pid(), SIGKILL);
    Say("a rank of each job but one is killed");
    Pass(away / 2);
    cluster_.StartCoordinator();
    Say("the coordinator is back");
  }

  // What became of them; `wrong` counts what is not as it is to be.
  nlohmann::ordered_json Judge(int64_t& wrong) {
    std::map<std::string, v1::JobStatus> later;
    for (const Job& job : jobs_) {
      // Far behind what it did while nobody looked.
      const int64_t done = static_cast<int64_t>(MetricsOf(data_, job.name).size());
      later[job.name] = job.ladder.empty() ? cluster_.AwaitEnd(job.id)
                                           : cluster_.AwaitStep(job.id, done + kStepsAfter);
    }
    for (const Job& job : jobs_) {
      if (job.ladder.empty()) continue;  // it has ended
      cluster_.Cancel(job.id);
      cluster_.AwaitEnd(job.id);
    }
    const std::vector<Metric> whole = MetricsOf(data_, kWhole);
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Job& job : jobs_) all.push_back(JudgeOne(job, later.at(job.name), whole, wrong));
    return all;
  }

 private:
  nlohmann::ordered_json JudgeOne(const Job& job, const v1::JobStatus& later,
                                  const std::vector<Metric>& whole, int64_t& wrong) {
    std::vector<Metric> metrics = MetricsOf(data_, job.name);
    const auto compared = static_cast<int64_t>(std::min(metrics.size(), whole.size()));
    std::string fault = StepsFault(metrics, static_cast<int64_t>(metrics.size()));
    metrics.resize(static_cast<size_t>(compared));
    if (fault.empty())
      fault = LossesFault(metrics, {whole.begin(), whole.begin() + compared}, compared);
    int64_t restarted = 0;
    for (const auto& [rank, starts] : cluster_.Starts(job.id))
      restarted += starts - 1 - (rank == job.hit && job.again ? 1 : 0);
    const std::vector<v1::Incident> incidents = cluster_.Incidents(job.id);
    const bool hit = job.hit >= 0, goes_on = !job.ladder.empty();
    const v1::FailureCause cause = !goes_on            ? later.failure()
                                   : incidents.empty() ? v1::FailureCause()
                                                       : incidents.front().cause();
    wrong += !fault.empty() + (restarted != 0) + (cause.rank() != std::max(job.hit, 0)) +
             (cause.cause() != (hit ? "RankKilled" : "")) + (incidents.empty() == hit) +
             (later.phase() != (goes_on ? v1::JOB_PHASE_RUNNING : v1::JOB_PHASE_FAILED)) +
             (compared <= job.step);
    return {{"job", job.name},
            {"known_step", job.step},
            {"steps", metrics.size()},
            {"phase", v1::JobPhase_Name(later.phase())},
            {"epoch", later.epoch()},
            {"cause", cause.cause()},
            {"rank", cause.rank()},
            {"restarted", restarted},
            {"fault", fault},
            {"what", incidents.empty() ? later.reason() : incidents.front().summary()}};
  }
  // While the worker lives.
  void Pass(absl::Duration duration) {
    support::Require(!cluster_.worker().watch().AwaitEnd(duration), "the worker has ended");
  }
  void Say(const char* what) const { std::fprintf(stderr, "%s\n", what); }

  const DataFolder data_ = MakeSmallData();
  std::vector<Job> jobs_ = Jobs();
  Cluster cluster_{{.devices = static_cast<int32_t>(jobs_.size()) * kRanks + 1}};
};

}  // namespace

bool LeaveWithoutCoordinator(int64_t minutes) {
  Away away;
  away.Leave(absl::Minutes(minutes));
  int64_t wrong = 0;
  nlohmann::ordered_json line = {{"benchmark", "coordinator_away"}, {"minutes", minutes}};
  line["jobs"] = away.Judge(wrong);
  line["wrong"] = wrong;
  std::printf("%s\n", line.dump().c_str());
  return wrong == 0;
}

}  // namespace phalanx::e2e

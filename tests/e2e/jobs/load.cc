#include "tests/e2e/jobs/load.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

constexpr char kHere[] = "here", kBeside[] = "beside";
constexpr int32_t kRanks = 3;
constexpr int64_t kShortSteps = 20;

}  // namespace

bool Outcome::good() const {
  return kept.all() && epoch == 1 && ranks_lost == 0 && step_fault.empty() && steps >= steps_told &&
         short_jobs_wrong == 0 && short_ranks_again == 0;
}

ClusterOptions Load::OptionsOf(const LoadOptions& options) const {
  // More jobs wait than one person may have without it.
  const std::string quotas = data_.path + "/quotas.yaml";
  support::WriteFile(quotas, "default: {queued_max: 1000000}\n");
  ClusterOptions all;
  all.devices = kRanks;
  all.coordinator_flags = TlsFlags(authority_.Coordinator());
  for (const std::string& flag :
       std::vector<std::string>{"--join-ca-certificate", authority_.folder() + "/ca.pem",
                                "--join-ca-key", authority_.folder() + "/ca-key.pem", "--quotas",
                                quotas, "--calls-per-second", "0", "--jobs-max", "1000000"}) {
    all.coordinator_flags.push_back(flag);
  }
  all.tls = operator_;
  all.worker_flags = {"--write-folder", data_.path};
  for (const char* node : {kHere, kBeside}) all.worker_tls[node] = authority_.Worker(node);
  all.store = options.store;
  all.coordinators = options.coordinators;
  return all;
}

Load::Load(const LoadOptions& options) : cluster_(OptionsOf(options)) {
  // Ends only when it is cancelled; its steps are counted at the end.
  job_ = cluster_
             .Submit(Document(data_,
                              {.name = "trains", .steps = kForEver, .language = "ranks: 2, tp: 2"}))
             .id();
  cluster_.AwaitStep(job_, 1);
  ranks_ = cluster_.Ranks(job_);
  cluster_.AddWorker(kBeside, 1);
  for (int32_t i = 0; i < 2; ++i) {
    submitters_.push_back(std::make_unique<Submitter>(cluster_.grpc(), data_,
                                                      SubmitterOptions{.number = i,
                                                                       .changes = true,
                                                                       .node = i == 0 ? kHere : "",
                                                                       .tokens = true,
                                                                       .tls = operator_}));
  }
}

void Load::SubmitShort() {
  const std::string name = absl::StrCat("short-", short_jobs_.size());
  // Before all that wait, for which no node has room.
  const v1::JobDocument document = Document(data_, {.name = name,
                                                    .steps = kShortSteps,
                                                    .vision = "",
                                                    .language = "ranks: 1",
                                                    .priority = 1,
                                                    .output = name});
  short_jobs_[name] = cluster_.Submit(document, name).id();
}

void Load::AwaitWorkers() {
  const absl::Time deadline = absl::Now() + support::kPatience;
  while (true) {
    const std::vector<v1::NodeStatus> nodes = cluster_.Nodes();
    const auto ready = std::count_if(nodes.begin(), nodes.end(), [](const v1::NodeStatus& node) {
      return node.state() == v1::NodeStatus::STATE_READY;
    });
    if (ready == 2) return;
    support::Require(absl::Now() < deadline, "the workers do not come back");
    cluster_.worker().watch().AwaitEnd(absl::Milliseconds(10));
  }
}

Outcome Load::Finish() {
  Outcome outcome;
  for (const auto& submitter : submitters_) outcome.acknowledged.Add(submitter->Finish());
  outcome.kept = LookFor(outcome.acknowledged, cluster_);
  for (const auto& [name, id] : short_jobs_) {
    const v1::JobStatus ended = cluster_.AwaitEnd(id);
    const std::string fault = StepsFault(ReadMetrics(data_.path + "/" + name), kShortSteps);
    ++outcome.short_jobs;
    outcome.short_jobs_wrong += ended.phase() != v1::JOB_PHASE_SUCCEEDED || !fault.empty();
    for (const auto& [rank, starts] : cluster_.Starts(id)) outcome.short_ranks_again += starts - 1;
  }
  const v1::JobStatus later = cluster_.AwaitStep(job_, cluster_.Get(job_).last_step().step() + 1);
  outcome.epoch = later.epoch();
  outcome.steps_told = later.last_step().step();
  outcome.ranks_lost = kRanks - static_cast<int64_t>(ranks_.size());
  for (const auto& [rank, watch] : ranks_) outcome.ranks_lost += watch.HasEnded();
  cluster_.Cancel(job_);
  for (const auto& [rank, watch] : ranks_) watch.AwaitEnd();
  const std::vector<Metric> metrics = ReadMetrics(data_.path + "/out");
  outcome.steps = static_cast<int64_t>(metrics.size());
  outcome.step_fault = StepsFault(metrics, outcome.steps);
  return outcome;
}

}  // namespace phalanx::e2e

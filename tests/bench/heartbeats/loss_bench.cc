// A rank on one of many nodes is killed: how long until the last node of its job is told, while all
// nodes send heartbeats once a second, each over a connection of its own. A job has one rank on
// each of eight nodes; the others have devices of another kind, and no job.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/support/job_text.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int kNodesOfJob = 8, kLosses = 100;
constexpr int kTimes = 10;  // a second, at which heartbeats come

std::string TextOf(int number) {
  return support::JobText({.name = absl::StrCat("lost-", number),
                           .ranks = kNodesOfJob,
                           .global = kNodesOfJob,
                           .micro = 1,
                           .recovers = false});
}

// Sends heartbeats of all nodes once a second until it goes.
class Heartbeats {
 public:
  explicit Heartbeats(const std::vector<std::unique_ptr<Node>>& nodes)
      : thread_([this, &nodes](const std::stop_token& stop) {
          auto next = std::chrono::steady_clock::now();
          for (size_t turn = 0; !stop.stop_requested(); ++turn) {
            const size_t first = turn % kTimes * nodes.size() / kTimes;
            const size_t end = (turn % kTimes + 1) * nodes.size() / kTimes;
            for (size_t node = first; node < end; ++node) nodes[node]->Heartbeat();
            std::this_thread::sleep_until(next += std::chrono::milliseconds(1000 / kTimes));
          }
        }) {}

 private:
  std::jthread thread_;
};

class Job {
 public:
  Job(const CoordinatorProcess& coordinator, const support::Authority& authority)
      : coordinator_(coordinator),
        certificates_(authority),
        jobs_(v1::JobService::NewStub(grpc::CreateChannel(
            coordinator.address(),
            transport::ClientCredentials(authority.User("bench", "submitter"))))) {
    for (int i = 0; i < kNodesOfJob; ++i) Join(i);
  }

  // The rank of a node is killed, which its node says; how long until the last of the others was
  // told.
  absl::Duration LoseRank() {
    for (auto& [i, member] : members_) member->Heartbeat();
    Train();
    const int lost = static_cast<int>(number_ % kNodesOfJob);
    std::map<int, v1::Command> stops;
    const absl::Time start = absl::Now();
    members_.at(lost)->Die(assign_, ranks_.at(lost));
    for (auto& [i, member] : members_) {
      if (i == lost) continue;
      stops[i] = member->Next();
      support::Require(stops[i].has_stop(), "a survivor is told something else");
    }
    const absl::Duration took = absl::Now() - start;
    for (auto& [i, stop] : stops) {
      members_.at(i)->Die(assign_, ranks_.at(i));
      members_.at(i)->Done(stop);
    }
    AwaitPhase(v1::JOB_PHASE_FAILED);
    return took;
  }

 private:
  void Join(int i) {
    const std::string node = absl::StrCat("member-", i);
    v1::WorkerHello hello = HelloOf(node, "cpu", 1);
    members_[i] =
        std::make_unique<Member>(coordinator_.address(), certificates_.Of(node), std::move(hello));
  }
  void Train() {
    job_ = Submit(*jobs_, TextOf(++number_));
    for (auto& [i, member] : members_) member->Done(member->NextOrder(), "data");
    for (auto& [i, member] : members_) {
      const v1::Command command = member->NextOrder();
      support::Require(command.has_assign(), "a member is told something else");
      assign_ = command.assign();
      member->Done(command);
      member->Ready(assign_, RankOf(absl::StrCat("member-", i)));
      ranks_[i] = RankOf(absl::StrCat("member-", i));
    }
    AwaitPhase(v1::JOB_PHASE_RUNNING);
  }
  // Each node has one.
  int32_t RankOf(const std::string& node) const {
    const auto& nodes = assign_.layout().placement().nodes();
    const auto found = std::find_if(nodes.begin(), nodes.end(),
                                    [&](const auto& one) { return one.node() == node; });
    support::Require(found != nodes.end(), node + " has no rank");
    return static_cast<int32_t>(found - nodes.begin());
  }
  void AwaitPhase(v1::JobPhase phase) {
    v1::WatchJobRequest request;
    request.set_job(absl::StrCat("job-", job_));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + support::kPatience));
    const auto stream = jobs_->WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (stream->Read(&response)) {
      if (response.job().phase() == phase) return context.TryCancel();
    }
    support::Require(false, absl::StrCat("the job does not come to phase ", phase));
  }

  const CoordinatorProcess& coordinator_;
  NodeCertificates certificates_;
  const std::unique_ptr<v1::JobService::Stub> jobs_;
  std::map<int, std::unique_ptr<Member>> members_;
  std::map<int, int32_t> ranks_;
  int64_t job_ = 0, number_ = 0;
  v1::Assign assign_;
};

void LossOfARank(benchmark::State& state) {
  const support::Authority authority;
  const transport::TlsFiles files = authority.Coordinator();
  const CoordinatorProcess coordinator(
      {"--tls-ca", files.ca, "--tls-certificate", files.certificate, "--tls-key", files.key});
  NodeCertificates certificates(authority);
  const std::vector<std::unique_ptr<Node>> others =
      JoinAll(coordinator.address(), state.range(0) - kNodesOfJob, &certificates, "gpu");
  const Heartbeats heartbeats(others);
  Job job(coordinator, authority);
  std::vector<double> milliseconds;
  for (auto _ : state) {
    for (int i = 0; i < kLosses; ++i)
      milliseconds.push_back(absl::ToDoubleMilliseconds(job.LoseRank()));
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  state.counters["p50_ms"] = milliseconds[milliseconds.size() / 2];
  state.counters["p99_ms"] = milliseconds[(milliseconds.size() * 99 + 99) / 100 - 1];
  state.counters["max_ms"] = milliseconds.back();
}
BENCHMARK(LossOfARank)
    ->ArgNames({"nodes"})
    ->Args({1000})
    ->Args({10'000})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

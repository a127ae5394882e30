#include "tests/e2e/matrix/scene.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

constexpr char kFirstNode[] = "here";
constexpr int32_t kDevices = 2;  // of each node

std::vector<std::string> FlagsOf(const Row& row) {
  std::vector<std::string> flags = {"--allow-inject"};
  flags.insert(flags.end(), row.coordinator_flags.begin(), row.coordinator_flags.end());
  return flags;
}

}  // namespace

Scene::Scene(const DataFolder& data, const Row& row)
    : cluster_({.devices = kDevices, .coordinator_flags = FlagsOf(row)}) {
  for (const char* node : {"middle", "there"}) daemons_[node] = &cluster_.AddWorker(node, kDevices);
  job_ = cluster_.Submit(Document(data, row.job)).id();
  cluster_.AwaitStep(job_, 2);
  ranks_ = cluster_.Ranks(job_);
}

void Scene::Inject(const Injection& injection) {
  std::vector<std::string> more = {"--fault", injection.fault};
  const auto add = [&more](const std::string& flag, const std::string& value) {
    if (!value.empty()) more.insert(more.end(), {flag, value});
  };
  add("--phase", injection.phase);
  add("--at-step", injection.at_step > 0 ? absl::StrCat(injection.at_step) : "");
  add("--for", injection.duration);
  if (!injection.waits()) NoteHit();
  const support::Finished told = e2e::Inject(cluster_, job_, injection.rank, std::move(more));
  support::Require(told.exit_code == 0, absl::StrCat("inject is refused: ", told.talk));
}

void Scene::NoteHit() {
  if (!hit_.has_value()) hit_ = absl::Now();
}

void Scene::Signal(const std::vector<int32_t>& ranks, int number) {
  if (number != SIGCONT) NoteHit();
  for (const int32_t rank : ranks) kill(PidOf(rank), number);
}

support::Process& Scene::Daemon(const std::string& node) {
  return node == kFirstNode ? cluster_.worker() : *daemons_.at(node);
}

void Scene::SignalDaemon(const std::string& node, int number) {
  if (number != SIGCONT) NoteHit();
  Daemon(node).Signal(number);
}

void Scene::SignalNode(const std::string& node, int number) {
  const auto ranks =
      cluster_.Ranks(job_, node == kFirstNode ? "worker" : absl::StrCat("worker-", node));
  SignalDaemon(node, number);
  for (const auto& [rank, watch] : ranks) kill(watch.pid(), number);
}

void Scene::RestartDaemon(const std::string& node) {
  Daemon(node).Wait();
  if (node == kFirstNode) return cluster_.StartWorker();
  daemons_[node] = &cluster_.AddWorker(node, kDevices);
}

void Scene::RestartCoordinator() {
  NoteHit();
  cluster_.KillCoordinator();
  cluster_.StartCoordinator();
}

void Scene::Phalanx(std::vector<std::string> arguments) {
  const std::string what = arguments.at(0);
  const support::Finished told = cluster_.Phalanx(std::move(arguments));
  support::Require(told.exit_code == 0, absl::StrCat(what, " is refused: ", told.talk));
}

void Scene::Await(const std::function<bool()>& enough, const std::string& what) {
  const absl::Time deadline = absl::Now() + support::kPatience;
  while (!enough()) {
    support::Require(absl::Now() < deadline, absl::StrCat("it does not come to ", what));
    Pass(absl::Milliseconds(10));
  }
}

void Scene::AwaitReached(size_t count) {
  Await([&] { return EventsOf(cluster_, job_, "FaultReached").size() >= count; },
        "where its fault is asked for");
}

void Scene::AwaitStepOf(int64_t epoch) {
  cluster_.Await(
      job_, [epoch](const v1::JobStatus& status) { return status.last_step().epoch() >= epoch; });
}

void Scene::AwaitEpoch(int64_t epoch) {
  cluster_.Await(job_, [epoch](const v1::JobStatus& status) { return status.epoch() >= epoch; });
}

void Scene::AwaitEvent(const std::string& type) {
  Await([&] { return !EventsOf(cluster_, job_, type).empty(); }, absl::StrCat("event ", type));
}

void Scene::AwaitEndOf(const std::vector<int32_t>& ranks) {
  for (const int32_t rank : ranks)
    support::Require(ranks_.at(rank).AwaitEnd(), absl::StrCat("rank ", rank, " lives on"));
}

void Scene::Pass(absl::Duration duration) {
  static const support::ProcessWatch self(getpid());
  self.AwaitEnd(duration);
}

}  // namespace phalanx::e2e

// What heartbeats cost phalanx-coordinator: each of so many nodes with eight GPUs has a connection
// of its own over loopback and sends one in each interval, at so many times of it as daemons do.
// Hellos, heartbeats, checks and examinations are those that daemons send (daemon.h), and all nodes
// run jobs of 25 nodes: each heartbeat has the pace of eight ranks in it. What ranks report
// themselves, such as steps, is no part of it. The processor time and the memory are the
// coordinator's alone; `client_cores` is what this process takes beside it.
//
// With a flood others call the coordinator beyond its limits meanwhile (flood.h), and it is
// measured how late heartbeats are heard: before it (`quiet_`) and in it (`late_`).
//
// It fails where a session is lost, one who floods is not refused anything, a refusal does not say
// when to ask again, or a call ends otherwise than it should; with kManyNodes also where the
// coordinator takes a core or more, holds 1.5 GB or more, or hears heartbeats of the flood's time
// too late, and where this process sends fewer heartbeats than it says.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/bench/heartbeats/demands.h"
#include "tests/bench/heartbeats/fleet.h"
#include "tests/bench/heartbeats/flood.h"
#include "tests/bench/heartbeats/jobs.h"
#include "tests/bench/heartbeats/lateness.h"
#include "tests/bench/heartbeats/nodes.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int64_t kNodesOfJob = 25;
constexpr int32_t kDevices = 8;

// Bounds of the runs with so many nodes.
constexpr int64_t kManyNodes = 10'000;
constexpr double kCoresMax = 1, kResidentMbMax = 1500;
// A node is suspect after 7.5 s of silence, and lost after 15. One that sends a heartbeat each
// second, of which a hundredth is a second late, is never near it.
constexpr double kLateP99MsMax = 1000;
// Of the heartbeats that are due, so many are sent.
constexpr double kSentShareMin = 0.95;

// A run of few nodes is a look at the program.
struct Spans {
  absl::Duration settle, measure;
};
Spans SpansOf(int64_t nodes) {
  if (nodes <= 100) return {absl::Seconds(2), absl::Seconds(4)};
  return {absl::Seconds(5), absl::Seconds(20)};
}

struct Security {
  std::optional<support::Authority> authority;
  std::optional<NodeCertificates> certificates;
  transport::TlsFiles coordinator, submitter, observer;
};

void Secure(Security& security) {
  security.authority.emplace();
  security.coordinator = security.authority->Coordinator();
  security.submitter = security.authority->User("owner", "submitter");
  security.observer = security.authority->User("observer", "viewer");
  security.certificates.emplace(*security.authority);
}

std::vector<std::string> FlagsOf(const transport::TlsFiles& files, int64_t interval, bool few) {
  std::vector<std::string> flags = {"--heartbeat-interval", absl::StrCat(interval, "s")};
  // So few that a busy machine, too, can call more often.
  if (few) flags.insert(flags.end(), {"--calls-per-second", "10"});
  if (!files.on()) return flags;
  flags.insert(flags.end(), {"--tls-ca", files.ca, "--tls-certificate", files.certificate,
                             "--tls-key", files.key});
  return flags;
}

void StartJobs(Jobs& jobs, int64_t nodes) {
  for (int64_t i = 0; i < nodes / kNodesOfJob; ++i) {
    const int64_t job = jobs.Submit({.name = absl::StrCat("trains-", i),
                                     .ranks = static_cast<int32_t>(kNodesOfJob) * kDevices});
    jobs.AwaitPhase(job, v1::JOB_PHASE_RUNNING);
  }
}

void Report(benchmark::State& state, const Flood::Counts& counts, double seconds,
            Demands& demands) {
  state.counters["calls_per_s"] = static_cast<double>(counts.calls()) / seconds;
  state.counters["taken"] = static_cast<double>(counts.taken);
  state.counters["refused"] = static_cast<double>(counts.refused);
  state.counters["oversized"] = static_cast<double>(counts.oversized);
  state.SetLabel(absl::StrCat(counts.refused, " calls refused, ", counts.without_hint,
                              " of them without a hint; ", counts.oversized,
                              " that were too large; ", counts.unexpected, " ended unexpectedly"));
  demands.That(counts.spared == 0, absl::StrCat("of ", counts.spared,
                                                " people who call too often nothing was refused"));
  demands.That(counts.oversized > 0, "nothing that is too large was refused");
  demands.That(counts.without_hint == 0,
               absl::StrCat(counts.without_hint, " refusals without a hint: ", counts.first));
  demands.That(counts.unexpected == 0,
               absl::StrCat(counts.unexpected, " calls ended unexpectedly: ", counts.first));
}

void HeartbeatsOfNodes(benchmark::State& state) {
  const int64_t count = state.range(0);
  const Heartbeats::Pace pace{.interval = std::chrono::seconds(state.range(1)),
                              .times = state.range(2)};
  const bool floods = state.range(4) != 0, is_few = count <= 100;
  const Spans spans = SpansOf(count);
  Security security;
  std::optional<Flood> flood;
  if (state.range(3) != 0) Secure(security);
  if (floods) {
    support::Require(security.authority.has_value(),
                     "a flood without TLS meets no limits of its people");
    flood.emplace(*security.authority);
  }
  const CoordinatorProcess coordinator(
      FlagsOf(security.coordinator, state.range(1), floods && is_few));
  const absl::Time joining = absl::Now();
  const Fleet fleet(coordinator.address(), count,
                    security.certificates.has_value() ? &*security.certificates : nullptr,
                    {.device_kind = "gpu", .devices = kDevices});
  state.counters["join_s"] = absl::ToDoubleSeconds(absl::Now() - joining);
  Jobs jobs(coordinator.address(), transport::ClientCredentials(security.submitter));
  std::optional<Heartbeats> heartbeats;
  heartbeats.emplace(fleet, pace);
  StartJobs(jobs, count);
  heartbeats.reset();
  std::optional<Lateness> lateness;
  if (floods) {
    lateness.emplace(coordinator.address(), transport::ClientCredentials(security.observer),
                     fleet.size());
  }
  heartbeats.emplace(fleet, pace, lateness.has_value() ? &*lateness : nullptr);
  Demands demands;
  for (auto _ : state) {
    const absl::Time settling = absl::Now();
    absl::SleepFor(spans.settle);
    const int64_t quiet = ResidentBytes(coordinator.pid()), sent = heartbeats->sent();
    if (floods) flood->Start(coordinator.address());
    const double cpu = CpuSeconds(coordinator.pid()), own = CpuSeconds(getpid());
    const absl::Time start = absl::Now();
    absl::SleepFor(spans.measure);
    const absl::Time end = absl::Now();
    const double seconds = absl::ToDoubleSeconds(end - start);
    const double cores = (CpuSeconds(coordinator.pid()) - cpu) / seconds;
    state.counters["cores"] = cores;
    state.counters["client_cores"] = (CpuSeconds(getpid()) - own) / seconds;
    const double rate = static_cast<double>(heartbeats->sent() - sent) / seconds;
    state.counters["beats_per_s"] = rate;
    const double due = static_cast<double>(count) / static_cast<double>(state.range(1));
    demands.That(count < kManyNodes || rate >= kSentShareMin * due,
                 absl::StrCat("of ", due, " heartbeats a second ", rate, " are sent"));
    heartbeats.reset();
    const int64_t ready = jobs.ReadyNodes();
    demands.That(ready == count, absl::StrCat("of ", count, " nodes ", ready, " are ready"));
    if (floods) {
      lateness->Stop();
      const Flood::Counts counts = flood->Stop();
      Report(state, counts, absl::ToDoubleSeconds(absl::Now() - start), demands);
      state.counters["quiet_resident_mb"] = static_cast<double>(quiet) / 1e6;
      ReportMilliseconds(state, "quiet", lateness->MillisecondsOf(settling, start));
      const double late = ReportMilliseconds(state, "late", lateness->MillisecondsOf(start, end));
      demands.That(count < kManyNodes || late < kLateP99MsMax,
                   absl::StrCat("of 100 heartbeats one is heard after ", late, " ms or later"));
      demands.That(lateness->lost() == 0,
                   absl::StrCat(lateness->lost(), " nodes are not heard, or not ready"));
    }
    const double resident = static_cast<double>(ResidentBytes(coordinator.pid())) / 1e6;
    state.counters["resident_mb"] = resident;
    demands.That(count < kManyNodes || cores < kCoresMax,
                 absl::StrCat("it takes ", cores, " cores"));
    demands.That(count < kManyNodes || resident < kResidentMbMax,
                 absl::StrCat("it holds ", resident, " MB"));
  }
  const auto lost = static_cast<double>(fleet.lost());
  state.counters["lost"] = lost;
  demands.That(lost == 0, absl::StrCat(lost, " sessions are lost"));
  demands.Settle(state);
}
// Nodes, seconds of the interval, times in it at which heartbeats come (the coordinator's default
// and once a second, together as daemons send them and no two together), whether over TLS, and
// whether beside a flood. The first with one is for a quick look, and a test.
BENCHMARK(HeartbeatsOfNodes)
    ->ArgNames({"nodes", "interval", "times", "tls", "flood"})
    ->Args({1000, 3, 10, 0, 0})
    ->Args({1000, 1, 10, 0, 0})
    ->Args({1000, 3, 1000, 0, 0})
    ->Args({1000, 1, 1000, 0, 0})
    ->Args({kManyNodes, 1, 10, 1, 0})
    ->Args({100, 1, 10, 1, 1})
    ->Args({kManyNodes, 1, 10, 1, 1})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

// What heartbeats cost phalanx-coordinator: each of so many nodes has a connection of its own over
// loopback and sends one in each interval, at so many times of it as daemons do. The processor time
// and the memory are the coordinator's alone; `client_cores` is what this process takes beside it.
//
// With a flood others call the coordinator beyond its limits meanwhile (flood.h), and it is
// measured how late heartbeats are heard: before it (`quiet_`) and in it (`late_`). It fails where
// a refusal does not say when to ask again, a call ends otherwise than it should, or a session is
// lost.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/bench/heartbeats/flood.h"
#include "tests/bench/heartbeats/lateness.h"
#include "tests/bench/heartbeats/nodes.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int kSettleSeconds = 5, kSeconds = 20;

std::vector<std::string> FlagsOf(const transport::TlsFiles& files) {
  if (!files.on()) return {};
  return {"--tls-ca", files.ca, "--tls-certificate", files.certificate, "--tls-key", files.key};
}

// `milliseconds`: the shortest first.
void Report(benchmark::State& state, const std::string& name,
            const std::vector<double>& milliseconds) {
  support::Require(!milliseconds.empty(), name + ": no heartbeat was heard");
  state.counters[name + "_p50_ms"] = milliseconds[milliseconds.size() / 2];
  state.counters[name + "_p99_ms"] = milliseconds[(milliseconds.size() * 99 + 99) / 100 - 1];
  state.counters[name + "_max_ms"] = milliseconds.back();
}

void Report(benchmark::State& state, const Flood::Counts& counts, double seconds, size_t lost) {
  state.counters["calls_per_s"] = static_cast<double>(counts.calls()) / seconds;
  state.counters["taken"] = static_cast<double>(counts.taken);
  state.counters["refused"] = static_cast<double>(counts.refused);
  state.counters["oversized"] = static_cast<double>(counts.oversized);
  const std::string story =
      absl::StrCat(counts.refused, " calls refused, ", counts.without_hint,
                   " of them without a hint; ", counts.oversized, " that were too large; ",
                   counts.unexpected, " ended unexpectedly; ", lost, " sessions lost");
  state.SetLabel(story);
  support::Require(counts.refused > 0 && counts.oversized > 0, "nothing was refused: " + story);
  support::Require(counts.without_hint == 0 && counts.unexpected == 0 && lost == 0,
                   absl::StrCat(story, ". ", counts.first));
}

void HeartbeatsOfNodes(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  const auto interval = std::chrono::seconds(state.range(1));
  const auto times = state.range(2);
  std::optional<support::Authority> authority;
  std::optional<NodeCertificates> certificates;
  std::optional<Flood> flood;
  transport::TlsFiles files, observer;
  if (state.range(3) != 0) {
    files = authority.emplace().Coordinator();
    certificates.emplace(*authority);
  }
  if (state.range(4) != 0) {
    support::Require(authority.has_value(), "a flood without TLS meets no limits of its people");
    observer = authority->User("observer", "viewer");
    flood.emplace(*authority);
  }
  const CoordinatorProcess coordinator(FlagsOf(files));
  const absl::Time joining = absl::Now();
  // Nodes that the flood's jobs have no use for: no command waits for them.
  const std::vector<std::unique_ptr<Node>> nodes =
      JoinAll(coordinator.address(), count, certificates.has_value() ? &*certificates : nullptr,
              flood.has_value() ? "gpu" : "cpu");
  state.counters["join_s"] = absl::ToDoubleSeconds(absl::Now() - joining);
  std::optional<Lateness> lateness;
  if (flood.has_value()) {
    lateness.emplace(coordinator.address(), transport::ClientCredentials(observer), nodes.size());
  }
  const auto send = [&](size_t node) {
    if (!lateness.has_value()) return nodes[node]->Heartbeat();
    // One that breaks is found by what was not heard of it.
    static_cast<void>(nodes[node]->TryHeartbeat(lateness->Send(node)));
  };
  auto next = std::chrono::steady_clock::now();
  const auto beat = [&](int for_seconds) {
    const int64_t beats = int64_t{for_seconds} * times / interval.count();
    for (int64_t i = 0; i < beats; ++i) {
      const int64_t first = i % times * count / times, end = (i % times + 1) * count / times;
      for (int64_t node = first; node < end; ++node) send(static_cast<size_t>(node));
      std::this_thread::sleep_until(next += std::chrono::nanoseconds(interval) / times);
    }
  };
  double cpu = 0, own = 0, seconds = 0;
  for (auto _ : state) {
    const absl::Time settling = absl::Now();
    beat(kSettleSeconds);
    const int64_t resident = ResidentBytes(coordinator.pid());
    if (flood.has_value()) flood->Start(coordinator.address());
    const double cpu_before = CpuSeconds(coordinator.pid()), own_before = CpuSeconds(getpid());
    const absl::Time start = absl::Now();
    beat(kSeconds);
    cpu += CpuSeconds(coordinator.pid()) - cpu_before;
    own += CpuSeconds(getpid()) - own_before;
    const absl::Time end = absl::Now();
    seconds += absl::ToDoubleSeconds(end - start);
    if (!flood.has_value()) continue;
    lateness->Stop();
    const Flood::Counts counts = flood->Stop();
    state.counters["quiet_resident_mb"] = static_cast<double>(resident) / 1e6;
    Report(state, "quiet", lateness->MillisecondsOf(settling, start));
    Report(state, "late", lateness->MillisecondsOf(start, end));
    Report(state, counts, absl::ToDoubleSeconds(absl::Now() - start), lateness->lost());
  }
  state.counters["cores"] = cpu / seconds;
  state.counters["client_cores"] = own / seconds;
  state.counters["resident_mb"] = static_cast<double>(ResidentBytes(coordinator.pid())) / 1e6;
  state.counters["beats_per_s"] =
      kSeconds * static_cast<double>(count) / static_cast<double>(interval.count()) / seconds;
}
// Nodes, seconds of the interval, times in it at which heartbeats come (the coordinator's default
// and once a second, together as daemons send them and no two together), whether over TLS, and
// whether beside a flood. The first with one is for a quick look.
BENCHMARK(HeartbeatsOfNodes)
    ->ArgNames({"nodes", "interval", "times", "tls", "flood"})
    ->Args({1000, 3, 10, 0, 0})
    ->Args({1000, 1, 10, 0, 0})
    ->Args({1000, 3, 1000, 0, 0})
    ->Args({1000, 1, 1000, 0, 0})
    ->Args({10'000, 1, 10, 1, 0})
    ->Args({100, 1, 10, 1, 1})
    ->Args({10'000, 1, 10, 1, 1})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

// What heartbeats cost phalanx-coordinator: each of so many nodes has a connection of its own over
// loopback and sends one in each interval, at so many times of it as daemons do. The processor time
// and the memory are the coordinator's alone; `client_cores` is what this process takes beside it.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/bench/heartbeats/nodes.h"

namespace phalanx::coordinator {
namespace {

constexpr int kSettleSeconds = 5, kSeconds = 20;

std::vector<std::string> FlagsOf(const transport::TlsFiles& files) {
  if (!files.on()) return {};
  return {"--tls-ca", files.ca, "--tls-certificate", files.certificate, "--tls-key", files.key};
}

void HeartbeatsOfNodes(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  const auto interval = std::chrono::seconds(state.range(1));
  const auto times = state.range(2);
  std::optional<support::Authority> authority;
  std::optional<NodeCertificates> certificates;
  transport::TlsFiles files;
  if (state.range(3) != 0) {
    files = authority.emplace().Coordinator();
    certificates.emplace(*authority);
  }
  const CoordinatorProcess coordinator(FlagsOf(files));
  const absl::Time joining = absl::Now();
  const std::vector<std::unique_ptr<Node>> nodes = JoinAll(
      coordinator.address(), count, certificates.has_value() ? &*certificates : nullptr, "cpu");
  state.counters["join_s"] = absl::ToDoubleSeconds(absl::Now() - joining);
  auto next = std::chrono::steady_clock::now();
  const auto beat = [&](int for_seconds) {
    const int64_t beats = int64_t{for_seconds} * times / interval.count();
    for (int64_t i = 0; i < beats; ++i) {
      const int64_t first = i % times * count / times, end = (i % times + 1) * count / times;
      for (int64_t node = first; node < end; ++node) nodes[static_cast<size_t>(node)]->Heartbeat();
      std::this_thread::sleep_until(next += std::chrono::nanoseconds(interval) / times);
    }
  };
  double cpu = 0, own = 0, seconds = 0;
  for (auto _ : state) {
    beat(kSettleSeconds);
    const double cpu_before = CpuSeconds(coordinator.pid()), own_before = CpuSeconds(getpid());
    const absl::Time start = absl::Now();
    beat(kSeconds);
    cpu += CpuSeconds(coordinator.pid()) - cpu_before;
    own += CpuSeconds(getpid()) - own_before;
    seconds += absl::ToDoubleSeconds(absl::Now() - start);
  }
  state.counters["cores"] = cpu / seconds;
  state.counters["client_cores"] = own / seconds;
  state.counters["resident_mb"] = static_cast<double>(ResidentBytes(coordinator.pid())) / 1e6;
  state.counters["beats_per_s"] =
      kSeconds * static_cast<double>(count) / static_cast<double>(interval.count()) / seconds;
}
// Nodes, seconds of the interval, times in it at which heartbeats come (the coordinator's default
// and once a second, together as daemons send them and no two together), and whether over TLS.
BENCHMARK(HeartbeatsOfNodes)
    ->ArgNames({"nodes", "interval", "times", "tls"})
    ->Args({1000, 3, 10, 0})
    ->Args({1000, 1, 10, 0})
    ->Args({1000, 3, 1000, 0})
    ->Args({1000, 1, 1000, 0})
    ->Args({10'000, 1, 10, 1})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

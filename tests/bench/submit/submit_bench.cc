// Acknowledged durable submits a second: 64 clients, each with a connection of its own, waiting for
// its answer before it submits again, against phalanx-coordinator over loopback, in plaintext and
// over mutual TLS, its store in SQLite on the file system of $PHALANX_BENCH_DIR (default: the
// current folder). `coordinator_us` and `client_us` are processor time of a submit.
#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/store/sqlite_backend.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/support/authority.h"
#include "tests/support/job_text.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int kClients = 64;
constexpr int kSubmitsEach = 500;

// A job file of some 400 bytes.
std::string TextOf(int64_t number) {
  return support::JobText({.name = absl::StrCat("job-n", number), .steps = 300});
}

// Time of one commit of one record: what the file system's fsync costs.
double CommitSeconds(const std::string& path) {
  auto backend = *SqliteBackend::Open(path);
  constexpr int kCommits = 200;
  const absl::Time start = absl::Now();
  for (int i = 1; i <= kCommits; ++i) {
    Batch batch;
    batch.records.push_back(
        {.number = static_cast<uint64_t>(i), .job = JobId{i}, .bytes = std::string(500, 'x')});
    if (!backend->Commit(batch).ok()) std::abort();
  }
  return absl::ToDoubleSeconds(absl::Now() - start) / kCommits;
}

// What the clients of one turn saw.
struct Seen {
  std::vector<double> milliseconds;
  std::atomic<int64_t> failures = 0;
  std::string failure;  // the first
};

// Each with credentials of its own: who has 1,000 jobs that wait may submit no more.
using Credentials = std::vector<std::shared_ptr<grpc::ChannelCredentials>>;

void RunClients(const std::string& address, const Credentials& credentials,
                std::atomic<int64_t>& names, Seen& seen) {
  std::vector<std::vector<double>> measured(kClients);
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      const auto stub = v1::JobService::NewStub(grpc::CreateCustomChannel(
          address, credentials[static_cast<size_t>(client)], OwnConnection()));
      for (int i = 0; i < kSubmitsEach; ++i) {
        const v1::SubmitJobRequest request = SubmitOf(TextOf(++names));
        v1::SubmitJobResponse response;
        grpc::ClientContext context;
        const absl::Time start = absl::Now();
        const grpc::Status status = stub->SubmitJob(&context, request, &response);
        if (!status.ok() && seen.failures++ == 0)
          seen.failure = absl::StrCat(status.error_code(), ": ", status.error_message());
        measured[static_cast<size_t>(client)].push_back(
            absl::ToDoubleMilliseconds(absl::Now() - start));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (const auto& list : measured)
    seen.milliseconds.insert(seen.milliseconds.end(), list.begin(), list.end());
}

void SubmitDurably(benchmark::State& state) {
  const char* base = std::getenv("PHALANX_BENCH_DIR");
  std::string folder = absl::StrCat(base == nullptr ? "." : base, "/submit-bench-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return state.SkipWithError("cannot make a folder");
  state.counters["commit_ms"] = 1e3 * CommitSeconds(folder + "/commit.db");
  std::vector<std::string> flags = {"--jobs-max", "1000000000", "--calls-per-second", "0"};
  std::optional<support::Authority> authority;
  Credentials credentials(kClients, grpc::InsecureChannelCredentials());
  if (state.range(0) != 0) {
    const transport::TlsFiles files = authority.emplace().Coordinator();
    flags.insert(flags.end(), {"--tls-ca", files.ca, "--tls-certificate", files.certificate,
                               "--tls-key", files.key});
    for (int i = 0; i < kClients; ++i) {
      credentials[static_cast<size_t>(i)] =
          transport::ClientCredentials(authority->User(absl::StrCat("bench-", i), "submitter"));
    }
  }
  const CoordinatorProcess coordinator(flags, folder);
  const int64_t resident = ResidentBytes(coordinator.pid());
  const double cpu = CpuSeconds(coordinator.pid()), own = CpuSeconds(getpid());
  std::atomic<int64_t> names = 0;
  Seen seen;
  for (auto _ : state) RunClients(coordinator.address(), credentials, names, seen);
  std::sort(seen.milliseconds.begin(), seen.milliseconds.end());
  const auto at = [&](double q) {
    return seen
        .milliseconds[static_cast<size_t>(q * static_cast<double>(seen.milliseconds.size() - 1))];
  };
  const auto submits = static_cast<double>(seen.milliseconds.size());
  state.SetItemsProcessed(static_cast<int64_t>(submits));
  state.counters["p50_ms"] = at(0.5);
  state.counters["p99_ms"] = at(0.99);
  state.counters["coordinator_us"] = 1e6 * (CpuSeconds(coordinator.pid()) - cpu) / submits;
  state.counters["client_us"] = 1e6 * (CpuSeconds(getpid()) - own) / submits;
  state.counters["failures"] = static_cast<double>(seen.failures.load());
  state.SetLabel(seen.failure);
  state.counters["job_bytes"] = static_cast<double>(TextOf(10'000).size());
  state.counters["resident_MB_grown"] =
      static_cast<double>(ResidentBytes(coordinator.pid()) - resident) / 1e6;
}
BENCHMARK(SubmitDurably)
    ->ArgNames({"tls"})
    ->Args({0})
    ->Args({1})
    ->Iterations(1)
    ->Repetitions(3)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

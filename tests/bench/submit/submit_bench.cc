// Acknowledged durable submits a second: 64 clients, each with a connection of its own, waiting for
// its answer before it submits again, against phalanx-coordinator over loopback, in plaintext and
// over mutual TLS, its store in SQLite on the file system of $PHALANX_BENCH_DIR (default: the
// current folder). `coordinator_us` and `client_us` are processor time of a submit. It fails where
// a submit does; where a least number a second is asked for, also where there are fewer.
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
#include "tests/bench/heartbeats/demands.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/support/authority.h"
#include "tests/support/job_text.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int kManyClients = 64;
constexpr int kWanted = 5000;  // a second

// Fewer clients are a look at the program.
int SubmitsEach(int64_t clients) { return clients >= kManyClients ? 500 : 25; }

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
  std::vector<std::vector<double>> measured(credentials.size());
  std::vector<std::thread> clients;
  const int submits_each = SubmitsEach(static_cast<int64_t>(credentials.size()));
  for (size_t client = 0; client < credentials.size(); ++client) {
    clients.emplace_back([&, client] {
      const auto stub = v1::JobService::NewStub(
          grpc::CreateCustomChannel(address, credentials[client], OwnConnection()));
      for (int i = 0; i < submits_each; ++i) {
        const v1::SubmitJobRequest request = SubmitOf(TextOf(++names));
        v1::SubmitJobResponse response;
        grpc::ClientContext context;
        const absl::Time start = absl::Now();
        const grpc::Status status = stub->SubmitJob(&context, request, &response);
        if (!status.ok() && seen.failures++ == 0)
          seen.failure = absl::StrCat(status.error_code(), ": ", status.error_message());
        measured[client].push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (const auto& list : measured)
    seen.milliseconds.insert(seen.milliseconds.end(), list.begin(), list.end());
}

void SubmitDurably(benchmark::State& state) {
  const int64_t clients = state.range(1), at_least = state.range(2);
  const char* base = std::getenv("PHALANX_BENCH_DIR");
  std::string folder = absl::StrCat(base == nullptr ? "." : base, "/submit-bench-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return state.SkipWithError("cannot make a folder");
  state.counters["commit_ms"] = 1e3 * CommitSeconds(folder + "/commit.db");
  std::vector<std::string> flags = {"--jobs-max", "1000000000", "--calls-per-second", "0"};
  std::optional<support::Authority> authority;
  Credentials credentials(static_cast<size_t>(clients), grpc::InsecureChannelCredentials());
  if (state.range(0) != 0) {
    const transport::TlsFiles files = authority.emplace().Coordinator();
    flags.insert(flags.end(), {"--tls-ca", files.ca, "--tls-certificate", files.certificate,
                               "--tls-key", files.key});
    for (size_t i = 0; i < credentials.size(); ++i) {
      credentials[i] =
          transport::ClientCredentials(authority->User(absl::StrCat("bench-", i), "submitter"));
    }
  }
  const CoordinatorProcess coordinator(flags, folder);
  const int64_t resident = ResidentBytes(coordinator.pid());
  const double cpu = CpuSeconds(coordinator.pid()), own = CpuSeconds(getpid());
  std::atomic<int64_t> names = 0;
  Seen seen;
  absl::Duration took;
  for (auto _ : state) {
    const absl::Time start = absl::Now();
    RunClients(coordinator.address(), credentials, names, seen);
    took += absl::Now() - start;
  }
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
  state.counters["job_bytes"] = static_cast<double>(TextOf(10'000).size());
  state.counters["resident_MB_grown"] =
      static_cast<double>(ResidentBytes(coordinator.pid()) - resident) / 1e6;
  const double a_second = submits / absl::ToDoubleSeconds(took);
  Demands demands;
  demands.That(seen.failures == 0,
               absl::StrCat(seen.failures.load(), " submits failed: ", seen.failure));
  demands.That(a_second >= static_cast<double>(at_least),
               absl::StrCat(a_second, " submits a second, fewer than ", at_least));
  demands.Settle(state);
}
// Whether over TLS, clients, and the least number a second; 0: any is well, as on a machine that
// does other things, too. The last is for a quick look, and a test.
BENCHMARK(SubmitDurably)
    ->ArgNames({"tls", "clients", "at_least"})
    ->Args({0, kManyClients, 0})
    ->Args({1, kManyClients, 0})
    ->Args({1, kManyClients, kWanted})
    ->Args({1, 8, 0})
    ->Iterations(1)
    ->Repetitions(3)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

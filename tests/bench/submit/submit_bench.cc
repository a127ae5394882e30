// Acknowledged durable submits a second: 64 clients, each waiting for its answer before it submits
// again, against a coordinator in the same process over loopback, store in SQLite on the file
// system of --benchmark_context=... or $PHALANX_BENCH_DIR (default: the current folder).
#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/sqlite_backend.h"
#include "phalanx/v1/job_service.grpc.pb.h"

namespace phalanx::coordinator {
namespace {

constexpr int kClients = 64;
constexpr int kSubmitsEach = 500;

std::string JobText(const std::string& name) {
  std::string text = absl::StrCat(
      "apiVersion: phalanx/v1\nkind: TrainingJob\nmetadata: {name: ", name,
      "}\nspec:\n  steps: 300\n  modules:\n    - name: language\n"
      "      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, mlp_size: 128,\n"
      "                     vocabulary: 256, context: 64, block: 32}\n"
      "      parallel: {ranks: 1}\n  batch: {global: 4, micro: 2}\n"
      "  data: {shards: a.tar, tokenizer: t.model}\n");
  // A job file of 400 bytes.
  text.append(text.size() < 400 ? 400 - text.size() : 0, '#');
  return text;
}

int64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
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

void SubmitDurably(benchmark::State& state) {
  const char* base = std::getenv("PHALANX_BENCH_DIR");
  std::string folder = absl::StrCat(base == nullptr ? "." : base, "/submit-bench-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return state.SkipWithError("cannot make a folder");
  state.counters["commit_ms"] = 1e3 * CommitSeconds(folder + "/commit.db");
  const int64_t resident_before = ResidentBytes();
  ServerOptions options;
  options.driver.machine.live_jobs_max = 1'000'000'000;
  auto server = Server::Start(std::move(options), *SqliteBackend::Open(folder + "/journal.db"));
  if (!server.ok()) return state.SkipWithError("cannot start");
  const std::string target = absl::StrCat("127.0.0.1:", (*server)->port());

  std::vector<double> latencies;
  std::atomic<int64_t> failures = 0, names = 0;
  std::string failure;  // the first
  int64_t submits = 0;
  for (auto _ : state) {
    std::vector<std::vector<double>> measured(kClients);
    std::vector<std::thread> clients;
    for (int client = 0; client < kClients; ++client) {
      clients.emplace_back([&, client] {
        // A connection of its own, as separate processes have.
        grpc::ChannelArguments arguments;
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        auto stub = v1::JobService::NewStub(
            grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
        for (int i = 0; i < kSubmitsEach; ++i) {
          v1::SubmitJobRequest request;
          request.mutable_document()->set_text(JobText(absl::StrCat("job-n", ++names)));
          request.mutable_document()->set_directory("/tmp");
          v1::SubmitJobResponse response;
          grpc::ClientContext context;
          const absl::Time start = absl::Now();
          const grpc::Status status = stub->SubmitJob(&context, request, &response);
          if (!status.ok() && failures++ == 0) {
            failure = absl::StrCat(status.error_code(), ": ", status.error_message());
          }
          measured[static_cast<size_t>(client)].push_back(
              absl::ToDoubleMilliseconds(absl::Now() - start));
        }
      });
    }
    for (std::thread& client : clients) client.join();
    for (const auto& list : measured) latencies.insert(latencies.end(), list.begin(), list.end());
    submits += kClients * kSubmitsEach;
  }
  std::sort(latencies.begin(), latencies.end());
  const auto at = [&](double q) {
    return latencies[static_cast<size_t>(q * static_cast<double>(latencies.size() - 1))];
  };
  state.SetItemsProcessed(submits);
  state.counters["p50_ms"] = at(0.5);
  state.counters["p99_ms"] = at(0.99);
  state.counters["failures"] = static_cast<double>(failures.load());
  state.SetLabel(failure);
  state.counters["job_bytes"] = static_cast<double>(JobText("job-n10000").size());
  state.counters["resident_MB_grown"] =
      static_cast<double>(ResidentBytes() - resident_before) / 1e6;
  server->reset();
  std::filesystem::remove_all(folder);
}
BENCHMARK(SubmitDurably)
    ->Iterations(1)
    ->Repetitions(3)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

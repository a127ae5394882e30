// What a coordinator's store costs: the start on 10,000 live and 1,000,000 ended jobs.
// Stores are written directly, in $PHALANX_BENCH_DIR (default: the current folder).
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/archive.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/store_check.h"
#include "coordinator/wire/record_codec.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

constexpr int64_t kLive = 10'000, kEnded = 1'000'000;
constexpr size_t kDocumentBytes = 400;

class Folder {
 public:
  Folder() {
    const char* base = std::getenv("PHALANX_BENCH_DIR");
    path_ = absl::StrCat(base == nullptr ? "." : base, "/store-bench-XXXXXX");
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string journal() const { return path_ + "/journal.db"; }

 private:
  std::string path_;
};

JournalRecord Submitted(int64_t job) {
  return {.time = absl::Now(),
          .job = JobId{job},
          .body = JobSubmitted{
              std::make_shared<const JobRequest>(JobRequest{
                  .document = {.text = std::string(kDocumentBytes, 'x'), .directory = "/d"},
                  .name = absl::StrCat("job-of-the-benchmark-", job),
                  .steps = 100,
                  .world = 8,
                  .devices = 8}),
              absl::StrCat("request-", job)}};
}

// Jobs 1 to kEnded have ended, the next kLive are queued.
void WriteStore(const std::string& path) {
  auto backend = *SqliteBackend::Open(path);
  constexpr int64_t kBatch = 10'000;
  for (int64_t first = 1; first <= kEnded; first += kBatch) {
    Batch batch;
    for (int64_t job = first; job < first + kBatch; ++job) {
      const JournalRecord cancelled{
          .time = absl::Now(),
          .job = JobId{job},
          .body = PhaseChanged{job::JobPhase::kCancelled, "cancelled on request", std::nullopt}};
      const StoredRecord records[] = {
          {.number = 1, .job = JobId{job}, .bytes = EncodeRecord(Submitted(job), 1)},
          {.number = 2, .job = JobId{job}, .bytes = EncodeRecord(cancelled, 2)}};
      batch.ended.push_back(**MakeEndedJob(JobId{job}, records));
    }
    if (!backend->Commit(batch).ok()) std::abort();
  }
  Batch live;
  for (int64_t i = 1; i <= kLive; ++i) {
    const auto number = static_cast<uint64_t>(i);
    live.records.push_back({.number = number,
                            .job = JobId{kEnded + i},
                            .bytes = EncodeRecord(Submitted(kEnded + i), number)});
  }
  if (!backend->Commit(live).ok()) std::abort();
}

// The same for all benchmarks: writing it takes a minute.
const Folder& TheStore() {
  static const Folder* folder = [] {
    static Folder made;
    WriteStore(made.journal());
    return &made;
  }();
  return *folder;
}

void StartOnAMillionEndedJobs(benchmark::State& state) {
  const Folder& folder = TheStore();
  state.counters["store_MB"] =
      static_cast<double>(std::filesystem::file_size(folder.journal())) / 1e6;
  for (auto _ : state) {
    auto server = Server::Start({}, *SqliteBackend::Open(folder.journal()));
    if (!server.ok()) return state.SkipWithError("cannot start");
    state.PauseTiming();
    server->reset();
    state.ResumeTiming();
  }
}
BENCHMARK(StartOnAMillionEndedJobs)->Iterations(3)->UseRealTime()->Unit(benchmark::kMillisecond);

// "VmHWM" or "VmRSS" of a process, in MB.
double MemoryOf(pid_t pid, const std::string& what) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(what + ":", 0) == 0) return std::stod(line.substr(what.size() + 1)) / 1024;
  }
  return 0;
}

bool HasThread(pid_t pid, const std::string& name) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    if (support::ReadText(entry.path().string() + "/comm") == name + "\n") return true;
  }
  return false;
}

// Until the process has a thread of that name, or has it no longer.
void AwaitThread(pid_t pid, const std::string& name, bool there) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
  while (HasThread(pid, name) != there) {
    support::Require(std::chrono::steady_clock::now() < end,
                     absl::StrCat("thread ", name, there ? " does not begin" : " does not end"));
    absl::SleepFor(absl::Milliseconds(10));
  }
}

// The program on that store: its start, its memory at most until it serves, and once it is idle,
// which it is behind the check of the entries: that takes seconds.
void MemoryOfAStart(benchmark::State& state) {
  const Folder& folder = TheStore();
  const std::string ready = folder.path() + "/ready.json", log = folder.path() + "/log";
  double start = 0, peak = 0, idle = 0;
  for (auto _ : state) {
    std::filesystem::remove(ready);
    const absl::Time begin = absl::Now();
    support::Process coordinator(
        {support::Program("phalanx-coordinator"), "--store", folder.path(), "--listen",
         "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", ready},
        support::NewMark(), log, log);
    support::AwaitFile(ready, coordinator);
    start = std::max(start, absl::ToDoubleSeconds(absl::Now() - begin));
    peak = std::max(peak, MemoryOf(coordinator.pid(), "VmHWM"));
    for (const bool there : {true, false}) AwaitThread(coordinator.pid(), "entry-check", there);
    idle = MemoryOf(coordinator.pid(), "VmRSS");
  }
  state.counters["start_s"] = start;
  state.counters["peak_MB"] = peak;
  state.counters["idle_MB"] = idle;
  state.counters["ratio"] = peak / idle;
}
BENCHMARK(MemoryOfAStart)->Iterations(3)->UseRealTime()->Unit(benchmark::kMillisecond);

// What a coordinator that serves does beside that after its start.
void CheckOfAMillionEntries(benchmark::State& state) {
  auto backend = *SqliteBackend::Open(TheStore().journal());
  const std::atomic<bool> stop = false;
  for (auto _ : state) {
    CheckEnded(
        *backend->ended_jobs(), stop, [] {}, [](const std::string&) { std::abort(); });
  }
}
BENCHMARK(CheckOfAMillionEntries)->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

#include "client/local_cluster.h"

#include <stdlib.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/wire/job_yaml.h"

namespace phalanx::client {
namespace {

constexpr absl::Duration kReadyInterval = absl::Milliseconds(10);
constexpr size_t kTailLines = 15;
constexpr size_t kTrialBytes = 64 << 10;

std::string TailOf(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(std::move(line));
    if (lines.size() > kTailLines) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) absl::StrAppend(&text, name, ": ", line, "\n");
  return text;
}

}  // namespace

absl::Status LocalCluster::MakeFolder() {
  std::error_code error;
  std::filesystem::path parent = options_.temporary;
  if (parent.empty()) parent = std::filesystem::temp_directory_path(error);
  std::string pattern = (error ? std::filesystem::path("/tmp") : parent) / "phalanx-run-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make a temporary folder ", pattern, ": ", std::strerror(errno),
                     "; set TMPDIR to a folder that you can write"));
  }
  folder_ = pattern;
  // Where there is no room for that, nothing of it could say so in its log.
  const std::string trial = folder_ + "/trial";
  std::ofstream file(trial);
  errno = 0;
  const bool written =
      file.write(std::string(kTrialBytes, 'x').data(), kTrialBytes) && file.flush();
  const int fault = errno;
  file.close();
  std::filesystem::remove(trial, error);
  if (written) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write to the temporary folder ", folder_, ": ",
                   fault != 0 ? std::strerror(fault) : "the file is not whole",
                   "; make room there, or set TMPDIR to a folder that has some"));
}

absl::StatusOr<std::string> LocalCluster::WaitForFile(const Child& child, const std::string& name,
                                                      const std::string& ready,
                                                      const Stopper& stopper) const {
  // Not of the wall clock, which may be set meanwhile.
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.start_timeout);
  while (true) {
    // Asked for first: a death that stops us is then seen as a death below.
    const bool stopped = stopper.stopped();
    // Written elsewhere and renamed, so it is there as a whole or not at all.
    if (std::ifstream file(ready); file) {
      return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    if (child.Ended() || AnyEnded()) {
      return absl::FailedPreconditionError(absl::StrCat(
          child.Ended() ? name : "phalanx-coordinator", " ended at the start\n", LogTails()));
    }
    if (stopped) return absl::CancelledError("interrupted");
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(name, " was not ready within ",
                                                      absl::FormatDuration(options_.start_timeout),
                                                      "\n", LogTails()));
    }
    absl::SleepFor(kReadyInterval);
  }
}

absl::Status LocalCluster::Start(const Stopper& stopper) {
  RETURN_IF_ERROR(MakeFolder());
  const std::string coordinator_ready = folder_ + "/coordinator.json";
  std::vector<std::string> coordinator = {options_.programs + "/phalanx-coordinator",
                                          "--listen",
                                          "127.0.0.1:0",
                                          "--http",
                                          "127.0.0.1:0",
                                          "--store",
                                          folder_ + "/store",
                                          "--ready-file",
                                          coordinator_ready};
  if (options_.allow_inject) coordinator.push_back("--allow-inject");
  ASSIGN_OR_RETURN(coordinator_, Child::Start(coordinator, folder_ + "/coordinator.log"));
  coordinator_pid_ = coordinator_.pid();
  ASSIGN_OR_RETURN(const std::string ready,
                   WaitForFile(coordinator_, "phalanx-coordinator", coordinator_ready, stopper));
  ASSIGN_OR_RETURN(const job::Tree addresses, wire::ParseYaml(ready));
  for (const auto& [name, value] : addresses.entries) {
    if (name == "grpc") server_ = value.scalar;
  }
  if (server_.empty()) return absl::InternalError("phalanx-coordinator did not say where it is");
  const std::string worker_ready = folder_ + "/worker.json";
  ASSIGN_OR_RETURN(worker_,
                   Child::Start({options_.programs + "/phalanx-worker", "--coordinator", server_,
                                 "--node", "local", "--device", options_.device, "--devices",
                                 absl::StrCat(options_.devices), "--state", folder_ + "/state",
                                 "--ready-file", worker_ready, "--check-interval", "0"},
                                folder_ + "/worker.log"));
  worker_pid_ = worker_.pid();
  return WaitForFile(worker_, "phalanx-worker", worker_ready, stopper).status();
}

bool LocalCluster::AnyEnded() const {
  const pid_t coordinator = coordinator_pid_, worker = worker_pid_;
  return (coordinator != 0 && Child::HasEnded(coordinator)) ||
         (worker != 0 && Child::HasEnded(worker));
}

std::string LocalCluster::LogTails() const {
  return TailOf(folder_ + "/coordinator.log", "phalanx-coordinator") +
         TailOf(folder_ + "/worker.log", "phalanx-worker");
}

void LocalCluster::Stop() {
  worker_pid_ = 0;
  coordinator_pid_ = 0;
  worker_.End(options_.worker_grace, &hurry_);
  coordinator_.End(options_.coordinator_grace, &hurry_);
  if (folder_.empty()) return;
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
  folder_.clear();
}

}  // namespace phalanx::client

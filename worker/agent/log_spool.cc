#include "worker/agent/log_spool.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

std::string Rotated(const std::string& path) { return absl::StrCat(path, ".1"); }

UniqueFd OpenToAppend(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
}

// 0: there is no file.
uint64_t IdentityAt(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.is_open() ? IdentityOf(file.get()) : 0;
}

// The last `bytes_max` bytes of a file; nothing if there is none.
std::string LastBytes(const std::string& path, size_t bytes_max) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!file.is_open() || fstat(file.get(), &info) != 0) return "";
  const size_t bytes = std::min(bytes_max, static_cast<size_t>(info.st_size));
  std::string text(bytes, '\0');
  const ssize_t n = pread(file.get(), text.data(), bytes, info.st_size - static_cast<off_t>(bytes));
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

// The numbers that name the subfolders of `folder`, ascending.
std::vector<int64_t> NumberedFolders(const std::string& folder) {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(entry->path().filename().string(), &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string JobFolder(const std::string& folder, JobId job) {
  return absl::StrCat(folder, "/jobs/", job.value);
}

// A few at a time: an epoch begins meanwhile, and a release before kept all.
void RemoveOldEpochs(const std::string& job) {
  constexpr size_t kAtOnce = 8;
  const std::vector<int64_t> epochs = NumberedFolders(job);
  for (size_t i = 0; i < kAtOnce && i + kEpochsMax < epochs.size(); ++i) {
    std::error_code error;
    fs::remove_all(absl::StrCat(job, "/", epochs[i]), error);
  }
}

}  // namespace

std::string StoreFolder(const std::string& state, uint64_t store) {
  return absl::StrCat(state, "/stores/", absl::Hex(store, absl::kZeroPad16));
}

void RemoveOtherStores(const std::string& state, uint64_t store) {
  const std::string present = StoreFolder(state, store);
  std::vector<fs::path> others;
  std::error_code error;
  for (fs::directory_iterator entry(absl::StrCat(state, "/stores"), error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry->path() != fs::path(present)) others.push_back(entry->path());
  }
  for (const fs::path& other : others) fs::remove_all(other, error);
}

absl::StatusOr<std::unique_ptr<LogSpool>> LogSpool::Open(const std::string& folder, JobId job,
                                                         Epoch epoch, int32_t rank,
                                                         int64_t bytes_max) {
  const std::string files = absl::StrCat(JobFolder(folder, job), "/", epoch.value);
  std::error_code error;
  const bool made = fs::create_directories(files, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot make ", files, ": ", error.message()));
  }
  if (made) RemoveOldEpochs(JobFolder(folder, job));
  std::unique_ptr<LogSpool> spool(
      new LogSpool(absl::StrCat(files, "/rank-", rank, ".log"), bytes_max));
  spool->file_ = OpenToAppend(spool->path_);
  struct stat info;
  if (!spool->file_.is_open() || fstat(spool->file_.get(), &info) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot open ", spool->path_, ": ", strerror(errno)));
  }
  spool->bytes_ = info.st_size;
  return spool;
}

LogSpool::Lost LogSpool::Append(absl::string_view text) {
  const int64_t half = std::max<int64_t>(bytes_max_ / 2, 1);
  while (!text.empty()) {
    if (bytes_ >= half) {
      rename(path_.c_str(), Rotated(path_).c_str());
      file_ = OpenToAppend(path_);
      bytes_ = 0;
    }
    const size_t n = std::min(text.size(), static_cast<size_t>(half - bytes_));
    const ssize_t written = write(file_.get(), text.data(), n);
    if (written <= 0) {
      if (written < 0 && errno == EINTR) continue;
      return {.bytes = static_cast<int64_t>(text.size()), .error = written < 0 ? errno : ENOSPC};
    }
    bytes_ += written;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

std::string LogSpool::Tail(size_t bytes_max) const {
  std::string text = LastBytes(path_, bytes_max + 1);
  if (text.size() <= bytes_max) {
    text.insert(0, LastBytes(Rotated(path_), bytes_max + 1 - text.size()));
  }
  if (text.size() <= bytes_max) return text;
  // One byte more than asked for: does a line begin right at the cut?
  const size_t newline = text.find('\n');
  const bool whole_lines = newline != std::string::npos && newline + 1 < text.size();
  return text.substr(whole_lines ? newline + 1 : 1);
}

uint64_t IdentityOf(int file) {
  struct stat info;
  if (fstat(file, &info) != 0) return 0;
  long generation = 0;  // the type that the call is declared with; 32 bits come
  if (ioctl(file, FS_IOC_GETVERSION, &generation) != 0) generation = 0;
  return info.st_ino ^ (uint64_t{static_cast<uint32_t>(generation)} << 32);
}

std::vector<LogFile> LogFiles(const std::string& folder, JobId job, int32_t rank) {
  const std::string epochs = JobFolder(folder, job);
  std::vector<LogFile> files;
  for (const int64_t epoch : NumberedFolders(epochs)) {
    const std::string path = absl::StrCat(epochs, "/", epoch, "/rank-", rank, ".log");
    // The newest first: one that is rotated meanwhile is found twice, not passed over.
    const uint64_t newest = IdentityAt(path), before = IdentityAt(Rotated(path));
    if (before != 0) files.push_back({Rotated(path), Epoch{epoch}, before});
    if (newest != 0 && newest != before) files.push_back({path, Epoch{epoch}, newest});
  }
  return files;
}

std::vector<int32_t> LoggedRanks(const std::string& folder, JobId job) {
  const std::string epochs = JobFolder(folder, job);
  std::set<int32_t> ranks;
  for (const int64_t epoch : NumberedFolders(epochs)) {
    std::error_code error;
    for (fs::directory_iterator entry(absl::StrCat(epochs, "/", epoch), error), end;
         !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      absl::string_view number = name;
      int32_t rank = 0;
      if (absl::ConsumePrefix(&number, "rank-") && absl::ConsumeSuffix(&number, ".log") &&
          absl::SimpleAtoi(number, &rank)) {
        ranks.insert(rank);
      }
    }
  }
  return {ranks.begin(), ranks.end()};
}

void RemoveOldLogs(const std::string& folder, const std::vector<JobId>& keep) {
  const std::vector<int64_t> jobs = NumberedFolders(absl::StrCat(folder, "/jobs"));
  for (size_t i = 0; i + kJobsMax < jobs.size(); ++i) {
    const JobId job{jobs[i]};
    if (std::find(keep.begin(), keep.end(), job) != keep.end()) continue;
    std::error_code error;
    fs::remove_all(JobFolder(folder, job), error);
  }
}

void LogActivity::ProcessBegan(JobId job) {
  MutexLock lock(&mutex_);
  ++processes_[job];
  ++version_;
  changed_.SignalAll();
}

void LogActivity::ProcessEnded(JobId job) {
  MutexLock lock(&mutex_);
  if (--processes_[job] == 0) processes_.erase(job);
  ++version_;
  changed_.SignalAll();
}

void LogActivity::TextAppended() {
  MutexLock lock(&mutex_);
  ++version_;
  changed_.SignalAll();
}

void LogActivity::Tick() { changed_.SignalAll(); }

void LogActivity::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  ++version_;
  changed_.SignalAll();
}

uint64_t LogActivity::version() const {
  MutexLock lock(&mutex_);
  return version_;
}

bool LogActivity::IsLive(JobId job) const {
  MutexLock lock(&mutex_);
  return processes_.find(job) != processes_.end();
}

std::vector<JobId> LogActivity::LiveJobs() const {
  MutexLock lock(&mutex_);
  std::vector<JobId> jobs;
  for (const auto& [job, processes] : processes_) jobs.push_back(job);
  return jobs;
}

bool LogActivity::closed() const {
  MutexLock lock(&mutex_);
  return closed_;
}

void LogActivity::WaitBeyond(uint64_t version, absl::Duration patience) const {
  using std::chrono::steady_clock;
  const steady_clock::time_point until = steady_clock::now() + absl::ToChronoNanoseconds(patience);
  MutexLock lock(&mutex_);
  while (version_ == version && steady_clock::now() < until) {
    changed_.WaitUntil(&mutex_, until);
  }
}

}  // namespace phalanx::agent

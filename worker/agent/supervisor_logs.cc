// What ranks print, on its way to their logs.
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/job/log_dropped.h"
#include "spdlog/spdlog.h"
#include "worker/agent/supervisor.h"

namespace phalanx::agent {
namespace {

constexpr size_t kOutputReadBytes = 64 << 10;
// The first time is told at once.
constexpr std::chrono::seconds kDroppedInterval{60};

}  // namespace

void Supervisor::OpenLog(Process& process, uint64_t store, Epoch epoch, int32_t rank) {
  auto log = LogSpool::Open(StoreFolder(options_.state, store), process.job, epoch, rank,
                            options_.log_bytes_max);
  if (!log.ok()) {
    spdlog::error("{} epoch={} rank={} log is lost: {}", ToString(process.job), epoch.value, rank,
                  log.status().ToString());
    process.log = nullptr;
    return;
  }
  process.log = *std::move(log);
}

bool Supervisor::ReadOutput(ProcessNumber number, Process& process, size_t bytes_max) {
  char bytes[kOutputReadBytes];
  bool appended = false;
  bool drained = false;
  for (size_t total = 0; total < bytes_max && !drained;) {
    if (!process.spawned.output.is_open()) return true;
    const ssize_t n = read(process.spawned.output.get(), bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) process.spawned.output.reset();
      drained = true;
      break;
    }
    total += static_cast<size_t>(n);
    Spool(number, process, {bytes, static_cast<size_t>(n)});
    appended = true;
  }
  if (appended) activity_.TextAppended();
  return drained;
}

void Supervisor::Spool(ProcessNumber number, Process& process, absl::string_view text) {
  const auto now = std::chrono::steady_clock::now();
  if (!process.budget.has_value()) process.budget.emplace(options_.log_rate, now);
  const auto bytes = static_cast<int64_t>(text.size());
  if (!process.budget->Take(bytes, now)) {
    process.dropped += bytes;
    process.dropped_untold += bytes;
    log_bytes_dropped_ += bytes;
    return;
  }
  if (process.log == nullptr) {
    process.dropped_untold += bytes;
    process.write_error = 0;
    return TellDropped(number, process, /*last=*/false);
  }
  if (process.dropped > 0) {
    process.log->Append(absl::StrCat("\n[phalanx-worker: ", process.dropped,
                                     " bytes were dropped here: more than ", options_.log_rate,
                                     " a second]\n"));
    process.dropped = 0;
  }
  const LogSpool::Lost lost = process.log->Append(text);
  process.dropped_untold += lost.bytes;
  if (lost.bytes > 0) process.write_error = lost.error;
  log_bytes_ += bytes - lost.bytes;
  TellDropped(number, process, /*last=*/false);
}

void Supervisor::TellDropped(ProcessNumber number, Process& process, bool last) {
  const auto now = std::chrono::steady_clock::now();
  // Of one that only warms up nobody takes a report: it is kept until the process has work.
  const bool waits = !process.assigned || now - process.told_at < kDroppedInterval;
  if (process.dropped_untold == 0 || (waits && !last)) return;
  v1::RankReport report;
  report.set_job(process.job.value);
  report.set_epoch(process.epoch.value);
  report.set_rank(process.rank);
  report.mutable_event()->set_type(job::kLogDropped);
  report.mutable_event()->set_message(
      process.write_error.has_value()
          ? job::LogNotWrittenText(process.dropped_untold, process.rank, *process.write_error)
          : job::LogDroppedText(process.dropped_untold, process.rank, options_.log_rate));
  spdlog::warn("{} epoch={} {}", ToString(process.job), process.epoch.value,
               report.event().message());
  events_.push_back(
      RankReported{number, process.epoch, ReportKind::kEvent, report.SerializeAsString()});
  process.dropped_untold = 0;
  process.write_error.reset();
  process.told_at = now;
}

}  // namespace phalanx::agent

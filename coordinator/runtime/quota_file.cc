#include "coordinator/runtime/quota_file.h"

#include <pthread.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/wire/quotas_yaml.h"
#include "core/base/violation.h"
#include "core/posix/file.h"

namespace phalanx::coordinator {

absl::StatusOr<Quotas> ReadQuotaFile(const std::string& file, absl::string_view name) {
  const absl::StatusOr<std::string> text = ReadWholeFile(file, kQuotasBytesMax);
  if (!text.ok())
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", file, ": ", text.status().message()));
  absl::StatusOr<Quotas> quotas = ReadQuotas(*text);
  if (quotas.ok()) return quotas;
  std::vector<std::string> lines;
  for (const Violation& violation : ViolationsOf(quotas.status())) {
    const std::string place = violation.line > 0 ? absl::StrCat(file, ":", violation.line) : file;
    lines.push_back(absl::StrCat(name, ": ", place, ": ", ToString(violation)));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

QuotaFile::QuotaFile(QuotaFileOptions options)
    : options_(std::move(options)), quotas_(options_.quotas), thread_([this] { Run(); }) {}

QuotaFile::~QuotaFile() {
  MutexLock lock(&mu_);
  stop_ = true;
  stop_changed_.SignalAll();
}

void QuotaFile::Look() {
  const absl::StatusOr<Quotas> read = ReadQuotaFile(options_.file, options_.name);
  const std::string fault(read.status().message());
  if (!fault.empty() && fault != told_)
    options_.warn(absl::StrCat(fault, "; the quotas of before hold"));
  told_ = fault;
  if (!read.ok() || *read == quotas_) return;
  quotas_ = *read;
  options_.changed(quotas_);
}

void QuotaFile::Run() {
  pthread_setname_np(pthread_self(), "quotas");
  while (true) {
    {
      const auto next =
          std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.refresh_interval);
      MutexLock lock(&mu_);
      while (!stop_ && !stop_changed_.WaitUntil(&mu_, next)) continue;
      if (stop_) return;
    }
    Look();
  }
}

}  // namespace phalanx::coordinator

// coordinator/runtime/quota_file.h: the file of quotas (coordinator/wire/quotas_yaml.h), looked at
// again while the program runs.
//
// What is put in its place, by a rename, holds from then on. What cannot be read, or is not sound,
// changes nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/machine/quotas.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Errors: InvalidArgument with everything that is wrong with it, each with the file and its line,
// or why it cannot be read. `name` of the file, as the user gave it: "--quotas".
absl::StatusOr<Quotas> ReadQuotaFile(const std::string& file, absl::string_view name);

struct QuotaFileOptions {
  std::string file;
  std::string name;
  Quotas quotas;  // that hold
  absl::Duration refresh_interval = absl::Seconds(10);
  // One line: why what is there now does not hold. From the thread of the file, as `changed`.
  std::function<void(const std::string& line)> warn = [](const std::string&) {};
  std::function<void(const Quotas& quotas)> changed = [](const Quotas&) {};
};

// Thread-safe.
class QuotaFile {
 public:
  explicit QuotaFile(QuotaFileOptions options);
  ~QuotaFile();
  QuotaFile(const QuotaFile&) = delete;
  QuotaFile& operator=(const QuotaFile&) = delete;

 private:
  void Look();
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const QuotaFileOptions options_;
  // Of the thread.
  Quotas quotas_;
  std::string told_;  // the fault that was told last
  Mutex mu_;
  CondVar stop_changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace phalanx::coordinator

// worker/rank/incident_files.h: the files of incidents in a job's output folder, written beside
// what the process does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "phalanx/v1/worker_service.pb.h"

namespace phalanx::rank {

// Writes `<output>/incidents/<number>/incident.json`: whole, or what was there stays. Folders are
// made but for `output` itself; none of them, and no file, is followed where it is a link.
// `folders`: below one of which `output` must lie when it is opened; none: it may lie anywhere.
// Errors: Unavailable, naming the path.
absl::Status WriteIncidentFile(const std::string& output, int64_t number, absl::string_view text,
                               const std::vector<std::string>& folders = {});

// Thread-safe. Files are written in the order of their orders, on a thread of its own, so that
// storage that hangs holds nobody up.
class IncidentFiles {
 public:
  using Failed = std::function<void(const v1::WriteIncident&, const absl::Status&)>;
  // `failed` is called on that thread.
  explicit IncidentFiles(Failed failed);
  // Waits until what was ordered is written.
  ~IncidentFiles();

  // One more than wait at once takes the place of the oldest.
  void Write(v1::WriteIncident order) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr size_t kWaitingMax = 64;
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Failed failed_;
  Mutex mu_;
  CondVar changed_;
  std::deque<v1::WriteIncident> waiting_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace phalanx::rank

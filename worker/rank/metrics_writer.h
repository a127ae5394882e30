// worker/rank/metrics_writer.h: the records of a run in the job's output folder: metrics.jsonl, one
// line a committed step, and a TensorBoard event file with the same figures.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/train/trainer.h"

namespace phalanx::rank {

class MetricsWriter {
 public:
  // Makes the folder. Lines of steps from `first_step` on that are already there are dropped: the
  // run goes on from the step before. Errors: what the file system says, naming the path.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(const std::string& folder,
                                                             int64_t first_step);
  ~MetricsWriter();

  absl::Status Write(const train::StepSummary& step, int64_t epoch);

 private:
  MetricsWriter(std::FILE* lines, std::FILE* events) : lines_(lines), events_(events) {}
  absl::Status WriteEvent(absl::string_view event);

  std::FILE* lines_;
  std::FILE* events_;
};

}  // namespace phalanx::rank

// worker/rank/metrics_writer.h: the records of a run in the job's output folder: metrics.jsonl, one
// line a committed step, and a TensorBoard event file with the same figures.
//
// A record is whole or absent: one that could not be written whole is taken back. Records of
// another job that used the folder before are put aside, never erased. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/posix/unique_fd.h"
#include "worker/rank/record_file.h"
#include "worker/train/trainer.h"

namespace phalanx::rank {

struct MetricsOptions {
  // Names the job among all jobs of all coordinators: "3f2a.../job-7".
  std::string owner;
  // The job whose state it goes on from, named alike; empty: none. Its lines are its own.
  std::string predecessor;
  // Lines of steps from this one on are dropped: the run goes on from the step before.
  int64_t first_step = 1;
  // This process has written lines of the job there in an epoch before, and first_step is behind
  // the first: a folder without them is another one, where the job's has been moved away, and takes
  // nothing.
  bool has_lines = false;
  // The epoch that writes, and its fence (Assign.fence of the wire); 0: not known, and the folder
  // neither learns of the epoch nor refuses it.
  int64_t epoch = 0, fence = 0;
  // A write that fails is tried again for so long.
  absl::Duration patience = absl::Seconds(15);
  // Below one of which the folder, and links in it, must lead when they are opened; none: anywhere.
  std::vector<std::string> folders;
  std::stop_token stop;
  // Once, when a write has failed, or another writer holds the folder, and it is tried again.
  std::function<void(const absl::Status&)> on_wait;
};

class MetricsWriter {
 public:
  // Makes the folder and holds it until the writer goes: no other writer has it meanwhile, where
  // the file system has locks. One that is held is waited for, for options.patience; where that is
  // by an earlier epoch of the same job for a second, and then that one can write no more. Once a
  // later epoch of the job has opened the folder, this one changes nothing in it.
  // metrics.jsonl of another owner becomes metrics.1.jsonl, metrics.2.jsonl, ..., unless the job
  // goes on from him, or from one whom he went on from; the incidents of another owner become
  // incidents.1, ... A job that goes on waits while the folder takes nothing, or has not the lines
  // that it is to have, for options.patience.
  // Errors: OutputUnavailable (core/job/failure.h), naming the path and who holds
  // it, or what is there and is no regular file; Aborted, naming the later epoch; Cancelled.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(const std::string& path,
                                                             MetricsOptions options);

  // Waits while the folder takes nothing, for options.patience. A step that has its line already
  // gets no other. Errors: OutputUnavailable; Cancelled when asked to stop meanwhile.
  absl::Status Write(const train::StepSummary& step, int64_t epoch);
  // The last one whose line is there, whoever wrote it; 0: none.
  int64_t last_step() const { return last_step_; }

 private:
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> TryToOpen(const std::string& path,
                                                                  MetricsOptions options);
  MetricsWriter(MetricsOptions options, UniqueFd held, RecordFile lines, RecordFile events)
      : options_(std::move(options)),
        held_(std::move(held)),
        lines_(std::move(lines)),
        events_(std::move(events)) {}
  absl::Status Append(RecordFile& file, absl::string_view record);

  const MetricsOptions options_;
  const UniqueFd held_;  // the folder, locked
  RecordFile lines_;
  RecordFile events_;
  int64_t last_step_ = 0;
  bool waited_ = false;  // for the record under way
};

}  // namespace phalanx::rank

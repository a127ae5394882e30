// tests/oracle/checkpoint/written_run.h: trains with ranks as threads of this process, from a
// checkpoint or from the beginning, and writes checkpoints on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/checkpoint/manifest.h"
#include "core/plan/plan.h"
#include "tests/oracle/training/cases.h"
#include "worker/checkpoint/writer.h"

namespace phalanx::oracle {

struct RunOptions {
  std::string load;               // a checkpoint; empty: from the beginning
  std::string directory;          // where checkpoints go
  std::vector<int64_t> write_at;  // steps, ascending
  // PartWrite::before_block of all ranks.
  std::function<absl::Status()> before_block = nullptr;
  std::function<void(int64_t step)> on_step = nullptr;  // all ranks have run it
};

struct WrittenRun {
  std::vector<TrainedStep> steps;      // after the checkpoint's, to the last
  std::vector<absl::Status> loaded;    // by rank that has work; nothing is trained if one failed
  std::vector<std::string> published;  // paths
  std::vector<absl::Status> failed;    // parts and publications
  int64_t left_out = 0;                // parts
};
// A checkpoint of a step is published behind it; with before_block, behind the last step.
WrittenRun TrainAndWrite(const plan::Plan& plan, const DataShape& data, const RunOptions& options);

// The plan of the job without these ranks; its data has a digest, as that of a real job.
plan::Plan PlanFor(const job::JobSpec& spec, const plan::RankList& lost = {});

}  // namespace phalanx::oracle

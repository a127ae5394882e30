// worker/rank/rank_figures.h: what one rank measured of itself over a run, for benchmarks and
// people: OUTPUT/ranks/rank-N.json.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "core/schedule/program.h"
#include "worker/device/cuda_device.h"
#include "worker/model/prepared.h"
#include "worker/rank/step_profile.h"
#include "worker/train/trainer.h"

namespace phalanx::rank {

// The first steps are slow for reasons of their own and count in nothing.
inline constexpr int64_t kWarmupSteps = 10;

class RankFigures {
 public:
  // `program`: the rank's own. `counts`, `prepared`: now.
  void Add(const train::StepSummary& step, const schedule::Program& program,
           const device::AllocatorCounts& counts = {},
           const model::PreparationCounts& prepared = {});
  // Makes the folder of the figures in `output`. `folders`: below one of which it must lie when it
  // is opened; none: it may lie anywhere. Errors: OutputUnavailable (core/job/failure.h), naming
  // the path.
  static absl::Status MakeFolder(const std::string& output,
                                 const std::vector<std::string>& folders = {});
  // Errors: what the file system says, naming the path; those of MakeFolder.
  absl::Status Write(const std::string& output, const plan::Plan& plan, Rank rank,
                     int64_t memory_bytes, const std::optional<StepProfile>& profile = {},
                     const std::vector<std::string>& folders = {}) const;

 private:
  // Seconds and number of the passes of one kind, waits for messages left out.
  struct Passes {
    double seconds = 0;
    int64_t count = 0;
  };
  void AddPasses(const train::StepFigures& figures, const schedule::Program& program);

  // By (module, chunk): forward, backward input, backward weight.
  std::map<std::pair<int32_t, int32_t>, std::array<Passes, 3>> passes_;
  double finish_seconds_ = 0;  // reductions, optimizer and gathers behind the passes
  int64_t steps_ = 0;
  double step_seconds_ = 0, busy_seconds_ = 0, exposed_comm_seconds_ = 0;
  double host_seconds_ = 0;  // in which the host worked
  // Of the step whose figures come with the next one.
  double previous_seconds_ = 0, previous_host_seconds_ = 0;
  device::AllocatorCounts first_counts_, last_counts_;  // before and behind the steps that count
  model::PreparationCounts prepared_;                   // behind them
  // Of the steps that count, the last in which these grew; 0: none.
  int64_t allocated_at_ = 0, prepared_at_ = 0;
};

// Peak resident bytes of this process.
int64_t ResidentBytesMax();

}  // namespace phalanx::rank

// client/progress.h: a job's way, as somebody watches it.
//
// On a terminal one line is redrawn: bar, step, loss, tokens a second, time left. Elsewhere a line
// is written for the first step, the last, and every few seconds between, so that a log stays
// readable. Phases and events are lines either way; where the coordinator left events out, since
// they came faster than they were read or while it was away, a line says how many.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "client/format.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

inline constexpr absl::Duration kLineInterval = absl::Seconds(5);
inline constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);

// Longest bar, in columns.
inline constexpr int kBarMax = 30;
// "[##......]": `share` of `width` columns is done.
std::string ProgressBar(double share, int width);

// Not thread-safe.
class Progress {
 public:
  explicit Progress(Io& io) : io_(io) {}

  // Shows what is new in `response`, received at `now`. What was shown before, as after a
  // reconnect, is not shown again.
  void Show(const v1::WatchJobResponse& response, absl::Time now);
  // Ends the line being redrawn, if any; before anything else is written.
  void Finish();

  // One line about the last step, without a line end.
  std::string StepLine() const;

 private:
  void ShowStep(const v1::StepReport& step, bool last, absl::Time now);
  void ShowEvents(const v1::WatchJobResponse& response);

  Io& io_;
  v1::JobPhase phase_ = v1::JOB_PHASE_UNSPECIFIED;
  int64_t steps_ = 0;
  int64_t event_number_ = 0;
  v1::StepReport step_;
  // Means that follow the last dozen of steps.
  double seconds_a_step_ = 0, tokens_a_second_ = 0;
  absl::Time shown_at_ = absl::InfinitePast();
  bool line_open_ = false;
};

}  // namespace phalanx::client

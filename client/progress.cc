#include "client/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/job_view.h"
#include "core/base/terminal_text.h"
#include "core/job/job_phase.h"

namespace phalanx::client {
namespace {

constexpr double kNewest = 0.15;  // weight of a step in the running means

}  // namespace

std::string ProgressBar(double share, int width) {
  const int filled = std::clamp(static_cast<int>(share * width + 0.5), 0, width);
  return absl::StrCat("[", std::string(static_cast<size_t>(filled), '#'),
                      std::string(static_cast<size_t>(width - filled), '.'), "]");
}

std::string Progress::StepLine() const {
  std::string line = absl::StrFormat("step %d/%d  loss %s  %s tokens/s", step_.step(), steps_,
                                     FormatLoss(step_.loss()), FormatCount(tokens_a_second_));
  const int64_t left = steps_ - step_.step();
  if (left > 0 && seconds_a_step_ > 0) {
    const double seconds = std::min(1e9, seconds_a_step_ * static_cast<double>(left));
    absl::StrAppend(&line, "  ", FormatAge(absl::Seconds(seconds)), " left");
  }
  return line;
}

void Progress::Finish() {
  if (line_open_) io_.talk << "\n" << std::flush;
  line_open_ = false;
}

void Progress::ShowStep(const v1::StepReport& step, bool last, absl::Time now) {
  if (step.step() <= step_.step()) return;
  const bool first = step_.step() == 0;
  if (step.seconds() > 0) {
    const double rate = static_cast<double>(step.tokens()) / step.seconds();
    seconds_a_step_ += (first ? 1 : kNewest) * (step.seconds() - seconds_a_step_);
    tokens_a_second_ += (first ? 1 : kNewest) * (rate - tokens_a_second_);
  }
  step_ = step;
  const bool end = step.step() == steps_;
  if (!first && !end &&
      (!last || now - shown_at_ < (io_.terminal ? kRedrawInterval : kLineInterval))) {
    return;
  }
  shown_at_ = now;
  if (!io_.terminal) {
    io_.talk << StepLine() << "\n" << std::flush;
    return;
  }
  const std::string text = StepLine();
  const int room = io_.columns - static_cast<int>(text.size()) - 4;
  const double done =
      steps_ > 0 ? static_cast<double>(step_.step()) / static_cast<double>(steps_) : 0;
  const std::string bar = room >= 10 ? ProgressBar(done, std::min(room, kBarMax)) + " " : "";
  // Back to the margin, write, and clear what is left of the line before.
  io_.talk << "\r" << bar << text << "\x1b[K" << std::flush;
  line_open_ = true;
}

void Progress::ShowEvents(const v1::WatchJobResponse& response) {
  for (const v1::JobEvent& event : response.events()) {
    if (event.number() <= event_number_) continue;
    const int64_t before = std::exchange(event_number_, event.number());
    const int64_t missed = event.number() - before - 1;
    // Of what was before the first one nobody asked.
    if (before > 0 && missed > 0) {
      Finish();
      io_.talk << "(" << missed << (missed == 1 ? " event is" : " events are")
               << " left out here; phalanx events " << JobName(response.job()) << " has them)\n";
    }
    // Phases have lines of their own.
    if (job::ParseJobPhase(event.type()).has_value()) continue;
    Finish();
    // A process's log follows in some, which `events` and the end of the job show.
    const absl::string_view message = event.message();
    const std::string first(message.substr(0, message.find('\n')));
    io_.talk << TerminalText(event.type()) << (first.empty() ? "" : ": ") << TerminalText(first)
             << "\n";
  }
}

void Progress::Show(const v1::WatchJobResponse& response, absl::Time now) {
  const v1::JobStatus& job = response.job();
  steps_ = job.steps();
  ShowEvents(response);
  for (int i = 0; i < response.steps_size(); ++i) {
    ShowStep(response.steps(i), i + 1 == response.steps_size(), now);
  }
  if (response.steps().empty() && job.has_last_step()) ShowStep(job.last_step(), true, now);
  if (job.phase() == phase_) return;
  phase_ = job.phase();
  Finish();
  io_.talk << JobName(job) << " " << PhaseWord(phase_) << (job.reason().empty() ? "" : ": ")
           << TerminalText(job.reason()) << "\n"
           << std::flush;
}

}  // namespace phalanx::client

// What becomes of a step that was decided: its figures, its progress, and what the reporter says.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "spdlog/spdlog.h"
#include "worker/device/cuda_device.h"
#include "worker/model/prepared.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/rank_reports.h"
#include "worker/rank/trace_file.h"

namespace phalanx::rank {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{100};
// Of an epoch, that are told of in the log: a recovery may hold up the first ones.
constexpr int64_t kStepsTold = 3;

}  // namespace

// The figures are of the step before. A checkpoint takes memory and processors while it is written,
// and not all ranks write as much.
void EpochRun::NoteWork(const train::StepSummary& step) {
  const bool writes = checkpoints_ != nullptr && checkpoints_->writing();
  const bool wrote = std::exchange(wrote_, writes);
  const bool profiled = profiler_.has_value() && profiler_->begun();
  work_.Add(step.previous.busy, step.previous.flops, writes || wrote || profiled);
}

void EpochRun::LogFirstSteps(const train::StepSummary& step) {
  if (order_.device_kind() != "gpu" || step.seconds == 0 || steps_told_ == kStepsTold) return;
  Log(
      absl::StrFormat("step %d took %.3f s, of which this host worked %.3f s; in the step before "
                      "it this rank worked %.3f s",
                      step.step, step.seconds, step.host_seconds, step.previous.busy));
  ++steps_told_;
}

void EpochRun::OnStep(const train::StepSummary& step) {
  NoteWork(step);
  LogFirstSteps(step);
  if (!profiler_.has_value() || !profiler_->begun())
    figures_.Add(step, *program_, device::CountAllocations(), model::CountPreparations());
  // What is trained is worth more than its profile.
  if (profiler_.has_value()) {
    const absl::Status profiled = profiler_->OnDecided(step.step);
    if (!profiled.ok()) Log(absl::StrCat("no profile: ", profiled.ToString()));
  }
  const auto now = std::chrono::steady_clock::now();
  const bool due = !progress_sent_.has_value() || now - *progress_sent_ >= kProgressInterval;
  if (due || step.step == trainer_->last_step()) {
    progress_sent_ = now;
    v1::ToDaemon message;
    message.mutable_progress()->set_epoch(epoch());
    message.mutable_progress()->set_step(step.step);
    message.mutable_progress()->set_step_seconds(step.seconds);
    message.mutable_progress()->set_work_seconds(work_.Median());
    message.mutable_progress()->set_equal_work(equal_work_);
    message.mutable_progress()->set_work_seconds_per_gflop(work_.MedianPerGflop());
    message.mutable_progress()->set_like_work(like_work_);
    report_status_.Update(channel_.Send(message, kSendTimeout));
  }
  if (!reporter_) return;
  if (const absl::Status written = WriteLine(step); !written.ok()) {
    report_status_.Update(written);
    MutexLock lock(&mu_);
    if (training_ != nullptr) training_->RequestStop();
  }
  v1::RankReport report;
  v1::StepReport& out = *report.mutable_step();
  out.set_step(step.step);
  out.set_loss(step.loss);
  out.set_gradient_norm(step.gradient_norm);
  out.set_learning_rate(step.learning_rate);
  out.set_tokens(step.tokens);
  out.set_counted_tokens(step.counted_tokens);
  out.set_seconds(step.seconds);
  out.set_epoch(epoch());
  out.set_skipped(step.skipped);
  out.set_corrupt_samples(step.corrupt_samples);
  *report.mutable_decided() = BeginsAt(kept_.training->decided(), kept_.training->counts());
  report_status_.Update(Report(std::move(report)));
}

void EpochRun::OnTrace(const std::vector<schedule::TimedInstruction>& timeline,
                       const std::vector<schedule::TimedOperation>& operations) {
  if (!reporter_) return;
  const absl::StatusOr<std::string> path =
      WriteTrace(output_, plan_, timeline, operations, WriteFolders());
  // What was trained is worth more than its picture.
  if (!path.ok()) {
    spdlog::warn("job={} epoch={} no trace: {}", order_.assign().job(), epoch(),
                 path.status().ToString());
    return;
  }
  spdlog::info("job={} epoch={} trace of step {} is in {}", order_.assign().job(), epoch(),
               TraceStep(plan_.spec), *path);
}

}  // namespace phalanx::rank

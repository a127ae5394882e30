// The records of a run, as the rank that reports opens and writes them (metrics_writer.h).
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/posix/held_folder.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/rank_reports.h"

namespace phalanx::rank {

absl::Status EpochRun::OpenMetrics() {
  if (!reporter_) return absl::OkStatus();
  MetricsOptions options;
  options.owner = absl::StrCat(store_, "/", ToString(JobId{order_.assign().job()}));
  if (manifest_.has_value()) {
    options.predecessor = absl::StrCat(manifest_->store, "/", ToString(JobId{manifest_->number}));
  }
  options.first_step = first_step_;
  options.epoch = epoch();
  options.fence = order_.assign().fence();
  options.stop = stopping_.get_token();
  options.on_wait = [this, patience = options.patience](const absl::Status& status) {
    v1::RankReport report;
    report.mutable_event()->set_type("OutputWaiting");
    report.mutable_event()->set_message(
        absl::StrCat(status.message(), "; training waits up to ", absl::FormatDuration(patience)));
    report_status_.Update(Report(std::move(report)));
  };
  options.folders = WriteFolders();
  options.has_lines = kept_.lines_in == output_;
  const absl::Status led =
      (options.has_lines ? HeldFolder::Open : HeldFolder::Make)(output_, options.folders).status();
  if (absl::IsInvalidArgument(led)) {
    return LeadsOut(job::FailureKind::kOutputUnavailable, "spec.output", plan_.spec.output, led);
  }
  ASSIGN_OR_RETURN(metrics_, MetricsWriter::Open(output_, std::move(options)));
  if (metrics_->last_step() > 0) kept_.lines_in = output_;
  const int64_t begins = manifest_.has_value() ? manifest_->step : 0;
  if (goes_on() && start_.decision.step > begins + 1 && metrics_->last_step() == 0) {
    v1::RankReport report;
    report.mutable_event()->set_type("LinesMissing");
    report.mutable_event()->set_message(
        absl::StrCat(output_, " has no lines of steps before ", start_.decision.step,
                     " on this node: metrics.jsonl begins there; the others are where the rank "
                     "that wrote them was, or have been moved away"));
    RETURN_IF_ERROR(Report(std::move(report)));
  }
  return RankFigures::MakeFolder(output_, WriteFolders());
}

absl::Status EpochRun::WriteLine(const train::StepSummary& step) {
  RETURN_IF_ERROR(metrics_->Write(step, epoch()));
  if (kept_.lines_in != output_) kept_.lines_in = output_;
  return absl::OkStatus();
}

}  // namespace phalanx::rank

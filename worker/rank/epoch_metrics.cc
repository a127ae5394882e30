// The records of a run, as the rank that reports opens and writes them (metrics_writer.h).
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/posix/held_folder.h"
#include "worker/rank/epoch_run.h"
#include "worker/rank/rank_reports.h"

namespace phalanx::rank {

std::string EpochRun::Owner() const {
  return absl::StrCat(store_, "/", ToString(JobId{order_.assign().job()}));
}

std::string EpochRun::Lines() const { return absl::StrCat(Owner(), " ", output_); }

absl::Status EpochRun::OpenMetrics() {
  if (!reporter_) return absl::OkStatus();
  MetricsOptions options;
  options.owner = Owner();
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
  // Of a job that begins anew no line stays.
  options.has_lines = first_step_ > 1 && kept_.lines == Lines();
  const absl::Status led =
      (options.has_lines ? HeldFolder::Open : HeldFolder::Make)(output_, options.folders).status();
  if (absl::IsInvalidArgument(led)) {
    return LeadsOut(job::FailureKind::kOutputUnavailable, "spec.output", plan_.spec.output, led);
  }
  ASSIGN_OR_RETURN(metrics_, MetricsWriter::Open(output_, std::move(options)));
  kept_.lines = metrics_->last_step() > 0 ? Lines() : "";
  const int64_t begins = manifest_.has_value() ? manifest_->step : 0;
  const int64_t last = metrics_->last_step(), decided = start_.decision.step;
  std::string missing;
  if (goes_on() && last == 0 && decided > begins + 1) {
    missing = absl::StrCat("of steps before ", decided,
                           " on this node: metrics.jsonl begins there; the others are where the "
                           "rank that wrote them was, or have been moved away");
  } else if (goes_on() && last > 0 && decided > last + 1) {
    missing = absl::StrCat("of steps ", last + 1, " to ", decided - 1,
                           ": metrics.jsonl has been cut, or what was written last was lost");
  }
  if (!missing.empty()) {
    v1::RankReport report;
    report.mutable_event()->set_type("LinesMissing");
    report.mutable_event()->set_message(absl::StrCat(output_, " has no lines ", missing));
    RETURN_IF_ERROR(Report(std::move(report)));
  }
  return RankFigures::MakeFolder(output_, WriteFolders());
}

absl::Status EpochRun::WriteLine(const train::StepSummary& step) {
  RETURN_IF_ERROR(metrics_->Write(step, epoch()));
  if (kept_.lines.empty()) kept_.lines = Lines();
  return absl::OkStatus();
}

}  // namespace phalanx::rank

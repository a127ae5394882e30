// The evaluation behind an epoch's last step.
#include <utility>

#include "core/base/status.h"
#include "worker/data/job_data.h"
#include "worker/rank/epoch_run.h"
#include "worker/train/evaluator.h"

namespace phalanx::rank {
namespace {

constexpr int32_t kCaptions = 8;

}  // namespace

absl::Status EpochRun::Evaluate() {
  const data::Tokenizer& tokenizer = *kept_.tokenizer;
  train::Evaluator evaluator(plan_, trainer_->executor(), *kept_.validation, LengthMultiple());
  ASSIGN_OR_RETURN(
      const train::EvaluationSummary summary,
      evaluator.Run(kCaptions, reporter_ ? &tokenizer : nullptr, tokenizer.end_token()));
  if (!reporter_) return absl::OkStatus();
  v1::RankReport report;
  v1::EvaluationReport& out = *report.mutable_evaluation();
  out.set_loss(summary.loss);
  out.set_uniform_loss(summary.uniform_loss);
  out.set_counted_tokens(summary.counted_tokens);
  for (const train::Caption& caption : summary.captions) {
    auto* item = out.add_captions();
    item->set_sample(caption.sample);
    item->set_truth(caption.truth);
    item->set_decoded(caption.decoded);
  }
  return Report(std::move(report));
}

}  // namespace phalanx::rank

#include "worker/train/evaluator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/base/status.h"
#include "core/plan/samples.h"
#include "worker/train/rank_values.h"

namespace phalanx::train {
namespace {

// New tokens of a caption at most.
constexpr int32_t kCaptionTokensMax = 16;

}  // namespace

Evaluator::Evaluator(const plan::Plan& plan, Executor& executor, SampleSource& validation,
                     int64_t length_multiple)
    : plan_(plan),
      executor_(executor),
      validation_(validation),
      batches_(plan, executor.places(), validation, executor.options().device,
               executor.options().compute, length_multiple) {}

absl::StatusOr<std::vector<double>> Evaluator::Sum(const std::vector<double>& values) const {
  return SumOverRanks(executor_, values);
}

absl::StatusOr<std::vector<double>> Evaluator::SumLosses() {
  const int64_t chunk = plan::SamplesAtOnce(plan_);
  std::vector<double> sums = {0, 0};
  for (int64_t first = 0; first < validation_.size(); first += chunk) {
    std::vector<int64_t> samples;
    for (int64_t s = first; s < std::min(validation_.size(), first + chunk); ++s)
      samples.push_back(s);
    ASSIGN_OR_RETURN(const Executor::Evaluation evaluated,
                     executor_.Evaluate(batches_, samples, /*predict=*/false));
    sums[0] += evaluated.loss_sum;
    sums[1] += evaluated.counted_tokens;
  }
  return Sum(sums);
}

absl::StatusOr<EvaluationSummary> Evaluator::Run(int32_t captions, const data::Tokenizer* tokenizer,
                                                 int32_t end_token) {
  ASSIGN_OR_RETURN(const std::vector<double> sums, SumLosses());
  EvaluationSummary summary;
  summary.counted_tokens = static_cast<int64_t>(sums[1]);
  summary.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
  summary.uniform_loss =
      std::log(static_cast<double>(plan_.module_spec(plan_.spec.language).architecture.vocabulary));

  std::vector<int64_t> shown;
  for (int64_t s = 0; s < validation_.size() && static_cast<int32_t>(shown.size()) < captions;
       ++s) {
    const data::SampleShape shape = validation_.shape(s);
    if (shape.images + shape.sounds > 0 && !shape.corrupt) shown.push_back(s);
  }
  if (shown.empty() || end_token < 0) return summary;
  std::vector<std::vector<int32_t>> decoded;
  const auto chunk = static_cast<size_t>(plan::SamplesAtOnce(plan_));
  for (size_t first = 0; first < shown.size(); first += chunk) {
    ASSIGN_OR_RETURN(auto some,
                     DecodeGreedily(absl::MakeConstSpan(shown).subspan(first, chunk), end_token));
    std::move(some.begin(), some.end(), std::back_inserter(decoded));
  }
  if (tokenizer == nullptr) return summary;
  for (size_t i = 0; i < shown.size(); ++i) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const data::Sample> sample, validation_.Take(shown[i]));
    std::vector<int32_t> truth;
    for (size_t t = 0; t < sample->labels.size(); ++t) {
      if (sample->label_counts[t] != 0 && sample->labels[t] != end_token)
        truth.push_back(sample->labels[t]);
    }
    summary.captions.push_back(
        {validation_.NameOf(shown[i]), tokenizer->Decode(truth), tokenizer->Decode(decoded[i])});
  }
  return summary;
}

absl::StatusOr<std::vector<int32_t>> Evaluator::NextTokens(absl::Span<const int64_t> samples) {
  ASSIGN_OR_RETURN(const Executor::Evaluation evaluated,
                   executor_.Evaluate(batches_, samples, /*predict=*/true));
  // Each lane's first tensor rank tells everyone the next tokens of its samples; 0 elsewhere.
  std::vector<double> next(samples.size(), 0);
  const plan::MicrobatchSamples dealt =
      plan::DealMicrobatch(plan_, static_cast<int64_t>(samples.size()));
  for (const plan::Place& place : executor_.places()) {
    if (!evaluated.predicted.defined() || place.module != plan_.spec.language) continue;
    if (place.tp != 0 || place.cp != 0) continue;
    const plan::UnitRange lane = plan::LaneSamples(plan_, place.module, place.dp, dealt);
    for (int64_t b = 0; b < lane.count; ++b) {
      const auto index = static_cast<size_t>(lane.first + b);
      next[index] = static_cast<double>(evaluated.predicted[b].item<int64_t>());
    }
  }
  ASSIGN_OR_RETURN(const std::vector<double> sums, Sum(next));
  return std::vector<int32_t>(sums.begin(), sums.end());
}

absl::StatusOr<std::vector<std::vector<int32_t>>> Evaluator::DecodeGreedily(
    absl::Span<const int64_t> samples, int32_t end_token) {
  const int64_t context = plan_.module_spec(plan_.spec.language).architecture.context;
  Batches::Growth growth;
  std::vector<int64_t> ends;  // of what each sample's sequence has so far
  for (int64_t sample : samples) {
    const data::SampleShape shape = validation_.shape(sample);
    growth[sample].prompt_positions = shape.positions - shape.counted + 1;
    ends.push_back(growth[sample].prompt_positions);
  }
  std::vector<bool> ended(samples.size(), false);
  batches_.SetGrowth(&growth);
  absl::Status status;
  for (int32_t round = 0; round < kCaptionTokensMax; ++round) {
    const absl::StatusOr<std::vector<int32_t>> next = NextTokens(samples);
    status.Update(next.status());
    if (!status.ok()) break;
    for (size_t i = 0; i < samples.size(); ++i) {
      ended[i] = ended[i] || (*next)[i] == end_token || ends[i] + 1 > context;
      if (ended[i]) continue;
      growth[samples[i]].tokens.push_back((*next)[i]);
      ++ends[i];
    }
    if (std::find(ended.begin(), ended.end(), false) == ended.end()) break;
  }
  batches_.SetGrowth(nullptr);
  RETURN_IF_ERROR(status);
  std::vector<std::vector<int32_t>> tokens;
  for (int64_t sample : samples) tokens.push_back(growth[sample].tokens);
  return tokens;
}

}  // namespace phalanx::train

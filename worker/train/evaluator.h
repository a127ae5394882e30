// worker/train/evaluator.h: what a model has learned: its loss on samples that it was not trained
// on, and captions that it writes.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "worker/data/data_set.h"
#include "worker/train/batches.h"
#include "worker/train/executor.h"

namespace phalanx::train {

struct Caption {
  std::string sample, truth, decoded;
};
struct EvaluationSummary {
  double loss = 0, uniform_loss = 0;
  int64_t counted_tokens = 0;
  std::vector<Caption> captions;
};

class Evaluator {
 public:
  // `length_multiple` as in batches.h. Everything given by reference outlives the evaluator.
  Evaluator(const plan::Plan& plan, Executor& executor, SampleSource& validation,
            int64_t length_multiple);

  // Loss over all samples of `validation`, and greedy captions of the first `captions` of them that
  // have items. The same call on every rank; the same result on every rank but for the captions'
  // text, which only a rank with `tokenizer` has.
  absl::StatusOr<EvaluationSummary> Run(int32_t captions, const data::Tokenizer* tokenizer,
                                        int32_t end_token);

 private:
  absl::StatusOr<std::vector<double>> Sum(const std::vector<double>& values) const;
  // Loss and counted tokens over all samples.
  absl::StatusOr<std::vector<double>> SumLosses();
  absl::StatusOr<std::vector<std::vector<int32_t>>> DecodeGreedily(
      absl::Span<const int64_t> samples, int32_t end_token);
  // The next token of each sample, as its lane's first tensor rank has it.
  absl::StatusOr<std::vector<int32_t>> NextTokens(absl::Span<const int64_t> samples);

  const plan::Plan& plan_;
  Executor& executor_;
  SampleSource& validation_;
  Batches batches_;
};

}  // namespace phalanx::train

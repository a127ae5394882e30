#include "tests/oracle/training/cases.h"

#include <gtest/gtest.h>

namespace phalanx::oracle {

job::JobSpec SpecOf(const Case& c, job::Precision precision) {
  support::AJob job;
  if (c.vision.dp > 0) job.Module("vision", support::ClipVision(), c.vision);
  job.Module("language", support::Llama(c.shape), c.language);
  if (c.vision.dp > 0) job.Edge("vision", "language", {.projector = 48});
  // Four microbatches a replica, the last ones shorter.
  const int64_t replicas = c.language.dp;
  job.Batch(8 * replicas - replicas / 2, 2).Compute(precision);
  job.spec().optimizer.clip_norm = 0.5;
  job.spec().optimizer.weight_decay = 0.1;
  job.spec().optimizer.warmup_steps = 2;
  if (precision == job::Precision::kFp32) job.spec().optimizer.epsilon = 1e-3;
  return job.Build();
}

void ExpectSteps(const std::vector<TrainedStep>& trained, const std::vector<TrainedStep>& plain,
                 const job::JobSpec& spec, double tolerance) {
  ASSERT_EQ(trained.size(), plain.size());
  for (size_t step = 0; step < plain.size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step + 1));
    const train::Decision& a = trained[step].decision;
    const train::Decision& b = plain[step].decision;
    EXPECT_EQ(a.counted_tokens, b.counted_tokens);
    EXPECT_NEAR(a.loss, b.loss, tolerance * b.loss);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, tolerance * b.gradient_norm);
    EXPECT_GT(b.gradient_norm, spec.optimizer.clip_norm) << "the case is meant to clip";
    const WorstTensor gradient = Compare(trained[step].gradients, plain[step].gradients);
    EXPECT_LE(gradient.error, tolerance) << "gradient of " << gradient.name;
    const WorstTensor parameter = Compare(trained[step].parameters, plain[step].parameters);
    EXPECT_LE(parameter.error, tolerance) << "parameter " << parameter.name;
  }
}

}  // namespace phalanx::oracle

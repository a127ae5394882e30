// Any valid job computes the step of the unsharded model.
//
// PHALANX_RANDOM_JOBS=5000 tests that many seeds instead of 200; PHALANX_RANDOM_JOB=SEED replays
// one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "absl/strings/numbers.h"
#include "tests/oracle/property/random_job.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/harness.h"

namespace phalanx::oracle {
namespace {

constexpr int64_t kSteps = 2;
constexpr double kTolerance = 1e-9;
constexpr uint64_t kSeeds = 200, kTests = 8;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

void ExpectEqual(uint64_t seed) {
  const RandomJob random = DrawJob(seed);
  // So that a run that is ended from outside tells where it was.
  if (std::getenv("PHALANX_RANDOM_JOBS") != nullptr ||
      std::getenv("PHALANX_RANDOM_JOB") != nullptr) {
    std::cerr << "seed " << seed << ": " << random.text << std::endl;
  }
  SCOPED_TRACE("replay with PHALANX_RANDOM_JOB=" + std::to_string(seed) + ": " + random.text);
  ExpectProven(random.spec);
  if (testing::Test::HasFatalFailure()) return;
  const std::vector<TrainedStep> plain = TrainPlain(random.spec, random.data, kSteps);
  const std::vector<TrainedStep> trained = TrainInProcess(random.spec, random.data, kSteps);
  ASSERT_EQ(trained.size(), plain.size());
  for (size_t step = 0; step < plain.size(); ++step) {
    const train::Decision& a = trained[step].decision;
    const train::Decision& b = plain[step].decision;
    EXPECT_EQ(a.counted_tokens, b.counted_tokens);
    EXPECT_NEAR(a.loss, b.loss, kTolerance * b.loss);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, kTolerance * b.gradient_norm);
    const WorstTensor gradient = Compare(trained[step].gradients, plain[step].gradients);
    EXPECT_LE(gradient.error, kTolerance)
        << "step " << step + 1 << ": gradient of " << gradient.name;
    const WorstTensor parameter = Compare(trained[step].parameters, plain[step].parameters);
    EXPECT_LE(parameter.error, kTolerance)
        << "step " << step + 1 << ": parameter " << parameter.name;
  }
}

class RandomJobTest : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomJobTest, Step_EqualsThePlainModel) {
  const uint64_t one = FromEnvironment("PHALANX_RANDOM_JOB", UINT64_MAX);
  if (one != UINT64_MAX) {
    if (one % kTests == GetParam()) ExpectEqual(one);
    return;
  }
  const uint64_t seeds = FromEnvironment("PHALANX_RANDOM_JOBS", kSeeds);
  for (uint64_t seed = GetParam(); seed < seeds; seed += kTests) {
    ExpectEqual(seed);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomJobTest, testing::Range(uint64_t{0}, kTests));

}  // namespace
}  // namespace phalanx::oracle

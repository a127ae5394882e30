// Any valid job computes the step of the unsharded model, also in the layout that a loss of ranks
// leaves of it.
//
// PHALANX_RANDOM_JOBS=5000 tests that many of both instead of 200; PHALANX_RANDOM_JOB=SEED replays
// one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/base/prng.h"
#include "core/plan/loss.h"
#include "tests/oracle/property/random_job.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/harness.h"

namespace phalanx::oracle {
namespace {

constexpr int64_t kSteps = 2;
constexpr double kTolerance = 1e-9;
constexpr uint64_t kSeeds = 200, kTests = 8;
constexpr int kDraws = 16;  // of a loss

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

void ExpectSame(const std::vector<TrainedStep>& trained, const std::vector<TrainedStep>& plain) {
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

// Some replica has fewer tensor ranks than it had, and still some.
bool Narrows(const plan::Layout& layout) {
  for (const plan::ModuleLayout& module : layout.modules) {
    for (const auto& change : module.changes) {
      if (!change.ranks.empty()) return true;
    }
  }
  return false;
}

// What is left of the plan after some loss that narrows a replica, or after any; nullopt: none that
// was drawn leaves every module a replica.
std::optional<plan::Plan> WithoutSome(const plan::Plan& healthy, uint64_t seed) {
  Prng prng(seed);
  std::optional<plan::Layout> left;
  for (int draw = 0; draw < kDraws && (!left.has_value() || !Narrows(*left)); ++draw) {
    plan::RankList lost;
    for (int32_t rank = 0; rank < healthy.world; ++rank) {
      if (prng.Below(5) == 0) lost.push_back(Rank{rank});
    }
    if (lost.empty()) continue;
    absl::StatusOr<plan::NextLayout> next = plan::LayoutAfter(healthy, {.lost = lost});
    if (next.ok()) {
      left = std::move(next->layout);
    } else {
      EXPECT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition) << next.status();
    }
  }
  if (!left.has_value()) return std::nullopt;
  auto plan = plan::Expand(healthy.spec, *std::move(left));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? std::optional(*std::move(plan)) : std::nullopt;
}

// Whether a narrowed replica was trained, too.
bool ExpectEqual(uint64_t seed) {
  RandomJob random = DrawJob(seed);
  // So that a run that is ended from outside tells where it was.
  if (std::getenv("PHALANX_RANDOM_JOBS") != nullptr ||
      std::getenv("PHALANX_RANDOM_JOB") != nullptr) {
    std::cerr << "seed " << seed << ": " << random.text << std::endl;
  }
  SCOPED_TRACE("replay with PHALANX_RANDOM_JOB=" + std::to_string(seed) + ": " + random.text);
  random.spec.steps = kSteps;
  // Replicas narrow, each by itself or all alike, or go.
  random.spec.recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  // Not in step with the tests, each of which needs jobs that narrow.
  if (seed / kTests % 4 == 3) random.spec.recovery.ladder = {job::Rung::kDropReplica};
  random.spec.recovery.widths = seed % 2 == 0 ? job::Widths::kOwn : job::Widths::kParity;
  random.spec.recovery.state_copies = static_cast<int32_t>(1 + seed % 3);
  const auto healthy =
      plan::MakePlan(random.spec, plan::MakeCluster(1, random.spec.World()), Epoch{1});
  EXPECT_TRUE(healthy.ok()) << healthy.status();
  if (!healthy.ok()) return false;
  ExpectProven(*healthy);
  if (testing::Test::HasFatalFailure()) return false;
  const std::vector<TrainedStep> plain = TrainPlain(random.spec, random.data, kSteps);
  ExpectSame(TrainInProcess(*healthy, random.data), plain);
  if (testing::Test::HasFailure()) return false;
  const std::optional<plan::Plan> left = WithoutSome(*healthy, seed);
  if (!left.has_value()) return false;
  ExpectProven(*left);
  if (testing::Test::HasFatalFailure()) return false;
  ExpectSame(TrainInProcess(*left, random.data), plain);
  return Narrows(left->layout);
}

class RandomJobTest : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomJobTest, Step_EqualsThePlainModel) {
  const uint64_t one = FromEnvironment("PHALANX_RANDOM_JOB", UINT64_MAX);
  if (one != UINT64_MAX) {
    if (one % kTests == GetParam()) ExpectEqual(one);
    return;
  }
  // So many jobs, and so many that lose ranks and are narrowed by that.
  const uint64_t wanted = FromEnvironment("PHALANX_RANDOM_JOBS", kSeeds) / kTests;
  uint64_t narrowed = 0, jobs = 0;
  for (uint64_t seed = GetParam(); jobs < wanted || narrowed < wanted; seed += kTests) {
    ++jobs;
    if (ExpectEqual(seed)) ++narrowed;
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomJobTest, testing::Range(uint64_t{0}, kTests));

}  // namespace
}  // namespace phalanx::oracle

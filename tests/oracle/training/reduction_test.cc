// Sums over replicas that begin inside the last backward pass, of a model with more elements than
// one bucket takes.
#include <gtest/gtest.h>

#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/harness.h"

namespace phalanx::oracle {
namespace {

TEST(ReductionTest, SumsThatBeginBehindTheirLayers_AreThoseOfThePlainModel) {
  const NamedJob job = Named(
      "wide",
      support::AJob()
          .Module("language", support::Llama({.hidden_size = 16, .heads = 4, .mlp_size = 250'000}),
                  {.dp = 2})
          .Batch(3, 1));  // the second replica has no sample in the last microbatch
  const auto plan = plan::MakePlan(job.spec, plan::MakeCluster(1, 2), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan::ParametersOf(*plan, plan->PlacesOf(Rank{0})[0]).buckets.size(), 2u);
  ExpectSteps(TrainInProcess(job.spec, job.data, 1), TrainPlain(job.spec, job.data, 1), job.spec,
              1e-9);
}

}  // namespace
}  // namespace phalanx::oracle

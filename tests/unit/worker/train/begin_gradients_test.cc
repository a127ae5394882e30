#include "worker/train/begin_gradients.h"

#include <ATen/ATen.h>

#include <limits>

#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/model/unwritten.h"

namespace phalanx::train {
namespace {

TEST(BeginGradientsTest, VectorsAndPaddingAreCleared_MatricesOnceSomebodyAsks) {
  job::JobSpec spec = support::AJob()
                          .Module("vision", support::ClipVision())
                          .Module("language", support::Llama())
                          .Edge("vision", "language");
  const plan::Plan plan = *plan::MakePlan(spec, plan::MakeCluster(1, 2), Epoch{1});
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      SCOPED_TRACE(place.module);
      PartState part(plan, place, /*chunk=*/0, {});
      ASSERT_TRUE(part.trains());
      part.gradients().fill_(std::numeric_limits<float>::quiet_NaN());
      BeginGradients(part);
      int64_t unwritten = 0;
      for (const plan::LocalMatrix& matrix : part.parameters().matrices)
        unwritten += matrix.cols > 1 ? matrix.rows * matrix.cols : 0;
      EXPECT_EQ(part.gradients().isnan().sum().item<int64_t>(), unwritten);
      EXPECT_GT(unwritten, 0);
      EXPECT_LT(unwritten, part.gradients().numel());
      model::ClearUnwritten(part.gradients());
      EXPECT_TRUE(at::equal(part.gradients(), at::zeros_like(part.gradients())));
    }
  }
}

TEST(BeginGradientsTest, FrozenPart_HasNone) {
  job::JobSpec spec = support::AJob()
                          .Module("vision", support::ClipVision(), {.frozen = true})
                          .Module("language", support::Llama())
                          .Edge("vision", "language");
  const plan::Plan plan = *plan::MakePlan(spec, plan::MakeCluster(1, 2), Epoch{1});
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      PartState part(plan, place, /*chunk=*/0, {});
      if (part.trains()) continue;
      BeginGradients(part);
      EXPECT_FALSE(part.gradients().defined());
      return;
    }
  }
  FAIL() << "no part is frozen";
}

}  // namespace
}  // namespace phalanx::train

#include "worker/model/one_order.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace phalanx::model {
namespace {

TEST(OneOrderTest, IsThereWhereItIsWanted_AndForAsLongAsItLives) {
  const at::Context& context = at::globalContext();
  const bool fills = context.deterministicFillUninitializedMemory();
  {
    const OneOrder none(false);
    EXPECT_FALSE(context.deterministicAlgorithms());
  }
  {
    const OneOrder order(true);
    EXPECT_TRUE(context.deterministicAlgorithms());
    EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
    EXPECT_FALSE(context.deterministicFillUninitializedMemory());
  }
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_EQ(context.deterministicFillUninitializedMemory(), fills);
}

}  // namespace
}  // namespace phalanx::model

#include "worker/train/message_stream.h"

#include <gtest/gtest.h>

namespace phalanx::train {
namespace {

// What a pass may name: the handle itself, copied, or a view of the memory.
TEST(MessageStreamTest, IsNamedElsewhere_SeesCopiesAndViews) {
  const at::Tensor one = at::zeros({4, 2});
  EXPECT_FALSE(IsNamedElsewhere(one));
  {
    const at::Tensor copy = one;  // NOLINT: the second handle is what is tested
    EXPECT_TRUE(IsNamedElsewhere(one));
  }
  EXPECT_FALSE(IsNamedElsewhere(one));
  {
    const at::Tensor view = one.narrow(0, 1, 2);
    EXPECT_TRUE(IsNamedElsewhere(one));
  }
  EXPECT_FALSE(IsNamedElsewhere(one));
}

}  // namespace
}  // namespace phalanx::train

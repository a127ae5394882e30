#include "worker/model/cudnn_attention.h"

#include <gtest/gtest.h>

#include <thread>

namespace phalanx::model {
namespace {

constexpr CudnnShape kShape = {.batch = 2,
                               .length = 64,
                               .query_heads = 8,
                               .kv_heads = 2,
                               .head_size = 64,
                               .causal = true,
                               .packed = true,
                               .half = false,
                               .device = 0};

// Beside other tests' shapes: those of a thread are its own.
template <typename Body>
void InAThread(const Body& body) {
  std::thread thread(body);
  thread.join();
}

TEST(CudnnAttentionTest, ShapesThatWereTried_AreTheThreads) {
  InAThread([] {
    EXPECT_FALSE(CudnnTried(kShape).has_value());
    SetCudnnTried(kShape, true);
    CudnnShape other = kShape;
    other.length = 72;
    SetCudnnTried(other, false);
    EXPECT_EQ(CudnnTried(kShape), true);
    EXPECT_EQ(CudnnTried(other), false);
    other.packed = false;  // another plan
    EXPECT_FALSE(CudnnTried(other).has_value());
  });
  InAThread([] { EXPECT_FALSE(CudnnTried(kShape).has_value()); });
}

TEST(CudnnAttentionTest, ShapesOfAThread_AreBounded) {
  InAThread([] {
    CudnnShape shape = kShape;
    for (size_t i = 0; i < kCudnnShapesMax; ++i) {
      EXPECT_TRUE(CudnnHasRoom());
      ++shape.batch;
      SetCudnnTried(shape, true);
    }
    EXPECT_FALSE(CudnnHasRoom());
  });
}

TEST(CudnnAttentionTest, ShapesThatCudnnDoesNotTake_AreNotWanted) {
  EXPECT_TRUE(CudnnIsWanted(kShape));
  const auto with = [](auto change) {
    CudnnShape shape = kShape;
    change(shape);
    return shape;
  };
  EXPECT_FALSE(CudnnIsWanted(with([](CudnnShape& s) { s.head_size = 68; })));
  EXPECT_FALSE(CudnnIsWanted(with([](CudnnShape& s) { s.head_size = 264; })));
  EXPECT_FALSE(CudnnIsWanted(with([](CudnnShape& s) { s.length = 1; })));
  EXPECT_FALSE(CudnnIsWanted(with([](CudnnShape& s) { s.batch = 0; })));
}

// It depends on device and version: whoever tries asks first.
TEST(CudnnAttentionTest, HeadsAboveHundredAndTwentyEight_AreWantedWhereCudnnTakesThem) {
  CudnnShape shape = kShape;
  for (const int64_t head_size : {136, 192, 256}) {
    shape.head_size = head_size;
    EXPECT_TRUE(CudnnIsWanted(shape)) << head_size;
  }
}

// Nothing is tried, and nothing is needed.
TEST(CudnnAttentionTest, OnTheCpu_NothingIsTried) {
  plan::TensorUnits units;
  units.query_heads = {0, 8};
  units.kv_heads = {0, 2};
  const HeadMap heads = MakeHeadMap(units, 4, 64, at::kCPU);
  PrepareAttention(heads, true, 2, 64, at::TensorOptions(at::kBFloat16));
  CudnnShape shape = kShape;
  shape.device = -1;
  EXPECT_FALSE(CudnnTried(shape).has_value());
}

}  // namespace
}  // namespace phalanx::model

#include "worker/train/packed_runs.h"

#include <vector>

#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

TEST(PackedRunsTest, PackAndUnpack_OfEveryWidth_MoveTheRunsAlone) {
  const PackedRuns runs({{1, 3}, {6, 1}, {9, 4}}, at::kCPU);
  ASSERT_EQ(runs.elements(), 8);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor flat = at::arange(16).to(type);
    at::Tensor packed = at::empty({8}, flat.options());
    runs.Pack(flat, packed);
    EXPECT_TRUE(packed.equal(at::tensor({1, 2, 3, 6, 9, 10, 11, 12}).to(type)));
    at::Tensor other = at::zeros({16}, flat.options());
    runs.Unpack(packed, other);
    EXPECT_TRUE(
        other.equal(at::tensor({0, 1, 2, 3, 0, 0, 6, 0, 0, 9, 10, 11, 12, 0, 0, 0}).to(type)));
  }
}

// The order of the summands shows where the small ones are lost in the large one.
TEST(SummedRunsTest, Summands_AreAddedReplicaAfterReplica) {
  const float large = 1 << 24;
  const SummedRuns own_last({{.elements = {1, 2}, .sources = {0, 2, -1}}}, 3, at::kCPU);
  const SummedRuns own_first({{.elements = {1, 2}, .sources = {-1, 0, 2}}}, 3, at::kCPU);
  const at::Tensor taken = at::tensor({1.0f, 1.0f, 1.0f, 2.0f});
  at::Tensor flat = at::tensor({5.0f, large, large, 5.0f});
  own_last.Sum(taken, flat);
  EXPECT_TRUE(flat.equal(at::tensor({5.0f, large + 2, large + 4, 5.0f})));
  flat = at::tensor({5.0f, large, large, 5.0f});
  own_first.Sum(taken, flat);
  EXPECT_TRUE(flat.equal(at::tensor({5.0f, large, large + 2, 5.0f})));
}

}  // namespace
}  // namespace phalanx::train

#include "worker/model/tensor_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/rows.h"
#include "worker/comm/communicator.h"

namespace phalanx::model {
namespace {

// Runs `body` on each rank of a group of `width`, as threads.
void OnEachRank(int32_t width, const std::function<void(comm::Communicator*, int32_t)>& body) {
  plan::CommunicatorSpec spec{.use = plan::CommunicatorSpec::Use::kTensor, .name = "group"};
  for (int32_t rank = 0; rank < width; ++rank) spec.ranks.push_back(Rank{rank});
  comm::InProcessWorld world(width);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < width; ++rank) {
    threads.emplace_back([&, rank] {
      const comm::Communicators communicators = world.Connect({spec}, Rank{rank});
      body(communicators[0].get(), rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

constexpr int64_t kHidden = 3;
// Values that sums do not round.
at::Tensor Rows(int64_t rows, int64_t first) {
  return at::arange(first, first + rows * kHidden, at::kDouble).view({rows, kHidden});
}

TEST(TensorGroupTest, Whole_OfWhatIsMine_IsWhole) {
  for (const int32_t width : {2, 3, 4}) {
    OnEachRank(width, [](comm::Communicator* communicator, int32_t rank) {
      const TensorGroup group(communicator, /*slices=*/true);
      for (int64_t rows = 1; rows <= 70; ++rows) {
        const at::Tensor whole = Rows(rows, rows), mine = group.Mine(whole);
        const plan::UnitRange slice = plan::SliceOf(rows, group.width(), rank);
        EXPECT_EQ(mine.size(0), slice.count);
        at::Tensor gathered;
        ASSERT_TRUE(group.Whole(mine, rows, &gathered).ok());
        EXPECT_TRUE(at::equal(gathered, whole)) << rows;
      }
    });
  }
}

TEST(TensorGroupTest, Sum_UnderSequenceParallelism_IsTheSliceOfTheSum) {
  for (const int32_t width : {2, 3, 4}) {
    OnEachRank(width, [](comm::Communicator* communicator, int32_t rank) {
      const TensorGroup sliced(communicator, /*slices=*/true), whole(communicator);
      for (int64_t rows = 1; rows <= 70; ++rows) {
        at::Tensor mine = Rows(rows, rank), all = Rows(rows, rank);
        ASSERT_TRUE(sliced.Sum(&mine).ok());
        ASSERT_TRUE(whole.Sum(&all).ok());
        EXPECT_TRUE(at::equal(mine, sliced.Mine(all))) << rows;
      }
    });
  }
}

TEST(TensorGroupTest, GroupOfOne_HasAllRows) {
  const TensorGroup group(nullptr, /*slices=*/true);
  const at::Tensor rows = Rows(13, 0);
  at::Tensor whole, sum = rows.clone();
  EXPECT_TRUE(at::equal(group.Mine(rows), rows));
  ASSERT_TRUE(group.Whole(rows, 13, &whole).ok());
  ASSERT_TRUE(group.Sum(&sum).ok());
  EXPECT_TRUE(at::equal(whole, rows));
  EXPECT_TRUE(at::equal(sum, rows));
}

}  // namespace
}  // namespace phalanx::model

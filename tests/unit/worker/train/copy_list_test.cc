#include "worker/train/copy_list.h"

#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

TEST(CopyListTest, Pieces_ComeToStandWhereTheyBelong_AndNothingElseChanges) {
  const at::Tensor from = at::arange(12).to(at::kFloat);
  at::Tensor to = at::full({10}, -1.0f);
  at::Tensor bytes = at::zeros({8}, at::kByte);
  CopyList copies;
  copies.Add(to, 1, from.narrow(0, 3, 2));
  copies.Add(to, 3, from.narrow(0, 5, 3));  // goes on where the first one ends
  copies.Add(to, 8, from.narrow(0, 0, 1).clone());
  copies.Add(bytes, 4, from.narrow(0, 11, 1));
  copies.Run();
  EXPECT_TRUE(to.equal(at::tensor({-1, 3, 4, 5, 6, 7, -1, -1, 0, -1}).to(at::kFloat)));
  EXPECT_EQ(bytes.narrow(0, 4, 4).view(at::kFloat).item<float>(), 11);
  to.fill_(-1);
  copies.Run();  // of what was added since
  EXPECT_TRUE(to.equal(at::full({10}, -1.0f)));
}

}  // namespace
}  // namespace phalanx::train

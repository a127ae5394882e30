#include "worker/model/unwritten.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "worker/model/weight_work.h"

namespace phalanx::model {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// A matrix of a flat buffer that holds nothing.
struct Buffer {
  at::Tensor flat = at::full({5 + 12 + 7}, kNothing);
  at::Tensor matrix = flat.narrow(0, 5, 12).view({4, 3});
  at::Tensor before = flat.narrow(0, 0, 5), behind = flat.narrow(0, 17, 7);
};

class UnwrittenTest : public testing::Test {
 protected:
  UnwrittenTest() {
    MarkUnwritten(buffer_.matrix);
    at::manual_seed(2);
    dy_ = at::randn({6, 4});
    x_ = at::randn({6, 3});
  }
  ~UnwrittenTest() override { ForgetUnwritten(); }

  static void AddProduct(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x) {
    WeightWork work;
    work.Matrix({gradient, gradient}, dy, x);
    work.Run();
  }
  void ExpectOthersUntouched() const {
    EXPECT_TRUE(buffer_.before.isnan().all().item<bool>());
    EXPECT_TRUE(buffer_.behind.isnan().all().item<bool>());
  }

  Buffer buffer_;
  at::Tensor dy_, x_;
};

TEST_F(UnwrittenTest, FirstProduct_IsWrittenAndTheNextOneAdded) {
  for (int times = 1; times <= 2; ++times) {
    AddProduct(buffer_.matrix, dy_, x_);
    EXPECT_TRUE(at::allclose(buffer_.matrix, times * at::mm(dy_.t(), x_)));
  }
  ExpectOthersUntouched();
}

TEST_F(UnwrittenTest, ProductsInBothWays_AreWrittenThenAddedWhetherMarkedOrNot) {
  const at::Tensor product = at::mm(dy_.t(), x_);
  for (int times = 1; times <= 2; ++times) {
    const ProductsInBothWays both;
    AddProduct(buffer_.matrix, dy_, x_);
    EXPECT_TRUE(at::allclose(buffer_.matrix, 2 * product));
  }
  AddProduct(buffer_.matrix, dy_, x_);
  EXPECT_TRUE(at::allclose(buffer_.matrix, 3 * product));
  ExpectOthersUntouched();
}

TEST_F(UnwrittenTest, TransposedMatrix_IsWritten) {
  AddProduct(buffer_.matrix.t(), x_, dy_);
  EXPECT_TRUE(at::allclose(buffer_.matrix, at::mm(dy_.t(), x_)));
}

TEST_F(UnwrittenTest, Bf16Product_IsWrittenInFp32) {
  const at::Tensor dy = dy_.to(at::kBFloat16), x = x_.to(at::kBFloat16);
  AddProduct(buffer_.matrix, dy, x);
  EXPECT_TRUE(at::allclose(buffer_.matrix, at::mm(dy.to(at::kFloat).t(), x.to(at::kFloat))));
}

TEST_F(UnwrittenTest, ProductOfSomeRows_LeavesZerosInTheOthers) {
  AddProduct(buffer_.matrix.narrow(0, 1, 2), dy_.narrow(1, 1, 2), x_);
  at::Tensor expected = at::mm(dy_.t(), x_);
  expected[0].zero_();
  expected[3].zero_();
  EXPECT_TRUE(at::allclose(buffer_.matrix, expected));
  ExpectOthersUntouched();
}

// Columns alone cannot be written without what lies between them.
TEST_F(UnwrittenTest, ProductOfSomeColumns_IsAddedToZeros) {
  AddProduct(buffer_.matrix.narrow(1, 0, 2), dy_, x_.narrow(1, 0, 2));
  at::Tensor expected = at::mm(dy_.t(), x_);
  expected.select(1, 2).zero_();
  EXPECT_TRUE(at::allclose(buffer_.matrix, expected));
}

TEST_F(UnwrittenTest, WhatCanButAdd_IsAddedToZeros) {
  WeightWork work;
  work.Rows({buffer_.matrix, buffer_.matrix}, 0, MakeTokenRows(at::tensor({2}, at::kLong)),
            at::ones({1, 3}));
  work.Run();
  at::Tensor expected = at::zeros({4, 3});
  expected[2].fill_(1);
  EXPECT_TRUE(at::equal(buffer_.matrix, expected));
  AddProduct(buffer_.matrix, dy_, x_);
  EXPECT_TRUE(at::allclose(buffer_.matrix, expected + at::mm(dy_.t(), x_)));
  ExpectOthersUntouched();
}

TEST_F(UnwrittenTest, ProductOverNoRows_WritesZeros) {
  AddProduct(buffer_.matrix, dy_.narrow(0, 0, 0), x_.narrow(0, 0, 0));
  EXPECT_TRUE(at::equal(buffer_.matrix, at::zeros({4, 3})));
}

TEST_F(UnwrittenTest, WhatNobodyWrote_IsCleared) {
  const at::Tensor other = at::full({2, 2}, kNothing);
  MarkUnwritten(other);
  ClearUnwritten(buffer_.flat);
  EXPECT_TRUE(at::equal(buffer_.matrix, at::zeros({4, 3})));
  EXPECT_TRUE(other.isnan().all().item<bool>()) << "it is of another buffer";
  ExpectOthersUntouched();
  ClearUnwritten();
  EXPECT_TRUE(at::equal(other, at::zeros({2, 2})));
}

TEST_F(UnwrittenTest, WhatIsForgotten_IsAddedTo) {
  ForgetUnwritten();
  buffer_.matrix.fill_(3);
  AddProduct(buffer_.matrix, dy_, x_);
  EXPECT_TRUE(at::allclose(buffer_.matrix, at::mm(dy_.t(), x_) + 3));
}

}  // namespace
}  // namespace phalanx::model

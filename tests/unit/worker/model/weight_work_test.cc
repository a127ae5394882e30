#include "worker/model/weight_work.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace phalanx::model {
namespace {

TEST(WeightWorkTest, Run_CallsPaceBetweenLayers) {
  const at::Tensor weight = at::zeros({2, 2}, at::kDouble);
  const Parameter first{weight, at::zeros_like(weight)}, second{weight, at::zeros_like(weight)};
  WeightWork work;
  work.Sum(first, at::ones_like(weight));
  work.NextLayer();
  work.Sum(second, at::ones_like(weight));
  int calls = 0;
  work.Run([&] {
    ++calls;
    EXPECT_TRUE(at::equal(first.gradient, at::ones_like(weight)));
    EXPECT_TRUE(at::equal(second.gradient, at::zeros_like(weight)));
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(at::equal(second.gradient, at::ones_like(weight)));
}

TEST(WeightWorkTest, Run_AddsToWhatIsThere) {
  const at::Tensor dy = at::tensor({1.0, 2.0, 3.0, 4.0}).view({2, 2}),
                   x = at::tensor({5.0, 6.0}).view({2, 1});
  const Parameter matrix{at::zeros({2, 1}), at::ones({2, 1})}, bias{at::zeros({2}), at::ones({2})};
  WeightWork work;
  work.Matrix(matrix, dy, x);
  work.Bias(bias, dy);
  work.Sum(bias, at::full({2}, 10.0));
  EXPECT_TRUE(at::equal(matrix.gradient, at::ones({2, 1}))) << "nothing is added before Run";
  work.Run();
  EXPECT_TRUE(at::equal(matrix.gradient, at::tensor({24.0f, 35.0f}).view({2, 1})));
  EXPECT_TRUE(at::equal(bias.gradient, at::tensor({15.0f, 17.0f})));
  work.Run();
  EXPECT_TRUE(at::equal(bias.gradient, at::tensor({15.0f, 17.0f}))) << "nothing is added twice";
}

TEST(WeightWorkTest, LayerDone_IsCalledBehindWhatStandsBeforeTheNextLayer_WhoeverAddsIt) {
  const at::Tensor one = at::ones({1, 1});
  const Parameter first{one, at::zeros({1, 1})}, second{one, at::zeros({1, 1})};
  WeightWork work;
  std::vector<double> sums;  // of both gradients, at each call
  work.RunAlong([&] { sums.push_back((first.gradient + second.gradient).item<double>()); });
  work.Matrix(first, one, one);
  work.NextLayer();
  work.Matrix(second, one, one);
  work.RunSome(1);
  EXPECT_TRUE(sums.empty()) << "it stands behind the product that was asked for";
  work.RunSome(1);
  EXPECT_EQ(sums, std::vector<double>{1});
  work.NextLayer();
  work.Run();
  EXPECT_EQ(sums, (std::vector<double>{1, 2}));
}

TEST(WeightWorkTest, RunSome_AddsTheOldestProductsAlone) {
  const at::Tensor one = at::ones({1, 1});
  const Parameter first{at::zeros({1, 1}), at::zeros({1, 1})},
      second{at::zeros({1, 1}), at::zeros({1, 1})}, vector{at::zeros({1}), at::zeros({1})};
  WeightWork work;
  const auto add = [&] {
    work.Matrix(first, one, one);
    work.Bias(vector, one);
    work.Matrix(second, one, one);
    work.Sum(vector, at::ones({1}));
  };
  add();
  work.RunSome(1);
  EXPECT_EQ(first.gradient.item<double>(), 0) << "the pass is not the one that adds";
  work.RunAlong();
  work.RunSome(1);
  EXPECT_EQ(first.gradient.item<double>(), 1);
  EXPECT_EQ(second.gradient.item<double>(), 0);
  EXPECT_EQ(work.waiting(), 1);
  work.RunSome(1);
  EXPECT_EQ(second.gradient.item<double>(), 1);
  EXPECT_EQ(vector.gradient.item<double>(), 2);
  add();
  work.RunSome(WeightWork::kAll);
  EXPECT_EQ(work.waiting(), 0);
  EXPECT_EQ(vector.gradient.item<double>(), 4);
}

TEST(WeightWorkTest, Bf16Operands_AccumulateInFp32) {
  const Parameter matrix{at::zeros({1, 1}, at::kBFloat16), at::zeros({1, 1})};
  const at::Tensor operand = at::full({1, 1}, 1 + 1.0 / 128, at::kBFloat16);
  WeightWork work;
  for (int i = 0; i < 3; ++i) work.Matrix(matrix, operand, operand);
  work.Run();
  EXPECT_EQ(matrix.gradient.item<double>(),
            3 * (1 + 1.0 / 128) * (1 + 1.0 / 128));  // not a bf16 number
}

TEST(WeightWorkTest, TransposedParameter_GetsTheSameGradientWhereItLies) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor dy = at::arange(6).to(type).view({2, 3}),
                     x = at::arange(8).to(type).view({2, 4});
    const Parameter plain{at::zeros({3, 4}, type), at::ones({3, 4})};
    const at::Tensor stored = at::ones({4, 3});
    WeightWork work;
    work.Matrix(plain, dy, x);
    work.Matrix({at::zeros({4, 3}, type).t(), stored.t()}, dy, x);
    work.Run();
    EXPECT_TRUE(at::equal(stored.t(), plain.gradient));
    EXPECT_EQ(stored[3][0].item<double>(), 1 + 3 * 0 + 7 * 3);
  }
}

TEST(WeightWorkTest, NarrowedRows_TakeTheirShare) {
  const Parameter whole{at::zeros({4}), at::zeros({4})};
  WeightWork work;
  work.Bias(NarrowRows(whole, 1, 2), at::ones({3, 2}));
  work.Run();
  EXPECT_TRUE(at::equal(whole.gradient, at::tensor({0.0f, 3.0f, 3.0f, 0.0f})));
  EXPECT_FALSE(NarrowRows({at::zeros({4}), {}}, 1, 2).gradient.defined());
}

TEST(WeightWorkTest, FrozenParameter_IsLeftAlone) {
  WeightWork work;
  work.Matrix({at::zeros({1, 1}), {}}, at::ones({1, 1}), at::ones({1, 1}));
  work.Rows({at::zeros({1, 1}), {}}, 0, MakeTokenRows(at::zeros({1}, at::kLong)), at::ones({1, 1}));
  work.Run();
}

}  // namespace
}  // namespace phalanx::model

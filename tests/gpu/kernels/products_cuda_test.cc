// Products by algorithms of a table: equal to fp64 within rounding, and to themselves, bit for bit;
// what a table does not decide, or the library does not take, has the bits of products without one.
#include "worker/model/products_cuda.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "worker/model/cuda_product.h"
#include "worker/model/fp8.h"
#include "worker/model/layer.h"
#include "worker/model/products.h"
#include "worker/model/weight_work.h"

namespace phalanx::model {
namespace {

using schedule::ProductAlgorithm;
using schedule::ProductKey;
using schedule::ProductTable;
using schedule::ProductType;

constexpr int64_t kM = 1024, kN = 768, kK = 512;

class ProductsCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().lazyInitDevice(at::kCUDA);
    // Fills what at::empty returns with NaN.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::manual_seed(7);
  }
  void TearDown() override {
    UseProductTable(nullptr);
    at::globalContext().setDeterministicAlgorithms(false, false);
  }

  static at::Tensor Random(at::IntArrayRef shape) {
    return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  }
  // A matrix [rows, columns] that is stored so, or turned.
  static at::Tensor Stored(bool turned, int64_t rows, int64_t columns) {
    return turned ? Random({columns, rows}).t() : Random({rows, columns});
  }
  static void ExpectClose(const at::Tensor& actual, const at::Tensor& exact, double tolerance) {
    ASSERT_EQ(actual.sizes(), exact.sizes());
    const double error = (actual.to(at::kDouble) - exact).norm().item<double>();
    EXPECT_LE(error, tolerance * exact.norm().item<double>());
  }
  static double ToleranceOf(const at::Tensor& d) {
    return d.scalar_type() == at::kFloat ? 1e-5 : 4e-3;
  }
  // A table for these products alone.
  static void Use(std::vector<std::pair<ProductKey, ProductAlgorithm>> products) {
    auto table = std::make_shared<ProductTable>();
    for (const auto& [key, algorithm] : products)
      table->entries.push_back({.key = key, .algorithm = algorithm});
    std::sort(table->entries.begin(), table->entries.end(),
              [](const auto& a, const auto& b) { return a.key < b.key; });
    UseProductTable(std::move(table));
  }
  static bool ByTable(const ProductKey& key) {
    for (const MetProduct& met : ProductsMet()) {
      if (met.key == key) return met.by_table;
    }
    ADD_FAILURE() << "it has not met " << schedule::ToString(key);
    return false;
  }
  static cublasLtHandle_t Handle() { return at::cuda::getCurrentCUDABlasLtHandle(); }
  static std::vector<ProductAlgorithm> CandidatesOf(const ProductKey& key, const at::Tensor& a,
                                                    const at::Tensor& b, const at::Tensor& bias,
                                                    const at::Tensor& d) {
    return cuda::Candidates(Handle(),
                            {.key = key,
                             .a = a.const_data_ptr(),
                             .b = b.const_data_ptr(),
                             .d = d.mutable_data_ptr(),
                             .bias = key.bias ? bias.const_data_ptr() : nullptr},
                            8);
  }
};

// Operands as training has them: y = x W^T of weights that lie as they are or turned, with and
// without a bias, its input gradient, and the weight's gradient in fp32, written and added.
struct Kind {
  bool a_turned, b_turned, wide, add, bias;
};
constexpr Kind kKinds[] = {{false, true, false, false, false}, {false, false, false, false, false},
                           {false, true, false, false, true},  {false, false, false, false, true},
                           {true, false, true, false, false},  {true, false, true, true, false}};

TEST_F(ProductsCudaTest, EachCandidate_EqualsFp64_AndItselfAgain) {
  size_t tried = 0;
  for (const Kind& kind : kKinds) {
    const at::Tensor a = Stored(kind.a_turned, kM, kK), b = Stored(kind.b_turned, kK, kN);
    const at::Tensor bias = kind.bias ? Random({kN}) : at::Tensor();
    const at::Tensor before = at::randn({kM, kN}, at::TensorOptions(at::kCUDA));
    at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
    if (kind.add) exact += before.to(at::kDouble);
    if (kind.bias) exact += bias.to(at::kDouble);
    const at::ScalarType type = kind.wide ? at::kFloat : at::kBFloat16;
    const auto key = fused::KeyOf(a, b, bias, type, kind.add);
    ASSERT_TRUE(key.has_value());
    SCOPED_TRACE(schedule::ToString(*key));
    EXPECT_EQ(key->a_turned, kind.a_turned);
    EXPECT_EQ(key->b_turned, kind.b_turned);
    const at::Tensor d = before.to(type, /*non_blocking=*/false, /*copy=*/true);
    const auto multiply = [&] {
      d.copy_(before);
      kind.wide ? WideProductInto(d, a, b, kind.add) : ProductInto(d, a, b, bias);
      return d.clone();
    };
    ExpectClose(multiply(), exact, ToleranceOf(d));
    EXPECT_FALSE(ByTable(*key));
    const std::vector<ProductAlgorithm> candidates = CandidatesOf(*key, a, b, bias, d);
    EXPECT_FALSE(candidates.empty());
    for (const ProductAlgorithm& algorithm : candidates) {
      Use({{*key, algorithm}});
      const at::Tensor first = multiply();
      if (!ByTable(*key)) continue;  // what is written of it is not all of it
      ++tried;
      ExpectClose(first, exact, ToleranceOf(d));
      EXPECT_TRUE(at::equal(multiply(), first)) << "not the same again";
    }
    UseProductTable(nullptr);
  }
  EXPECT_GE(tried, std::size(kKinds)) << "the library takes back too little of what it proposes";
}

TEST_F(ProductsCudaTest, EachCandidateInFp8_EqualsFp64_AndItselfAgain) {
  if (!CheckFp8({at::kCUDA, 0}).ok()) GTEST_SKIP() << CheckFp8({at::kCUDA, 0});
  size_t tried = 0;
  for (const auto& [format, add] : {std::pair{Fp8Format::kE4M3, false}, {Fp8Format::kE5M2, true}}) {
    const Operand a = RoundToFp8(Random({kM, kK}), format, Forms::kRows);
    const Operand b = RoundToFp8(Random({kN, kK}), Fp8Format::kE4M3, Forms::kRows);
    const auto values = [](const Operand& of) {
      return of.rows.to(at::kDouble) * of.scale.to(at::kDouble);
    };
    const at::Tensor exact = values(a).mm(values(b).t());
    const auto multiply = [&, add = add] {
      if (!add) return Fp8Product(a.rows, a.scale, b.rows, b.scale, Fp8Sums::kFast);
      at::Tensor d = at::zeros({kM, kN}, at::TensorOptions(at::kCUDA));
      AddFp8Product(d, a.rows, a.scale, b.rows, b.scale);
      return d;
    };
    const at::Tensor without = multiply();
    const ProductKey key{.a = add ? ProductType::kE5M2 : ProductType::kE4M3,
                         .b = ProductType::kE4M3,
                         .d = add ? ProductType::kFp32 : ProductType::kBf16,
                         .b_turned = true,
                         .add = add,
                         .fast = !add,
                         .m = kM,
                         .n = kN,
                         .k = kK};
    SCOPED_TRACE(schedule::ToString(key));
    EXPECT_FALSE(ByTable(key));
    const cuda::Product product{.key = key,
                                .a = a.rows.const_data_ptr(),
                                .b = b.rows.const_data_ptr(),
                                .d = without.mutable_data_ptr(),
                                .a_scale = a.scale.const_data_ptr<float>(),
                                .b_scale = b.scale.const_data_ptr<float>()};
    for (const ProductAlgorithm& algorithm : cuda::Candidates(Handle(), product, 8)) {
      Use({{key, algorithm}});
      const at::Tensor first = multiply();
      if (!ByTable(key)) continue;
      ++tried;
      ExpectClose(first, exact, add ? 1e-3 : 4e-3);
      EXPECT_TRUE(at::equal(multiply(), first)) << "not the same again";
    }
    UseProductTable(nullptr);
  }
  EXPECT_GE(tried, 2u) << "the library takes back too little of what it proposes";
}

// An algorithm that there is not.
TEST_F(ProductsCudaTest, WhatTheLibraryDoesNotTake_HasTheBitsOfProductsWithoutATable) {
  const at::Tensor x = Random({kM, kK}), dy = Random({kM, kN});
  const Parameter weight{Random({kN, kK}), at::zeros({kN, kK}, at::TensorOptions(at::kCUDA))};
  const auto gradient = [&] {
    weight.gradient.zero_();
    WeightWork work;
    work.Matrix(weight, dy, x);
    work.Run();
    return weight.gradient.clone();
  };
  const at::Tensor y = Linear(x, weight), dx = LinearInputGradient(dy, weight), dw = gradient();
  const ProductKey forward{.b_turned = true, .m = kM, .n = kN, .k = kK};
  const ProductKey backward{.m = kM, .n = kK, .k = kN};
  const ProductKey sum{
      .d = ProductType::kFp32, .a_turned = true, .add = true, .m = kN, .n = kK, .k = kM};
  const ProductAlgorithm none{.id = 9999};
  Use({{forward, none}, {backward, none}, {sum, none}});
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(at::equal(Linear(x, weight), y));
    EXPECT_TRUE(at::equal(LinearInputGradient(dy, weight), dx));
    EXPECT_TRUE(at::equal(gradient(), dw));
  }
  for (const ProductKey& key : {forward, backward, sum}) EXPECT_FALSE(ByTable(key));
}

TEST_F(ProductsCudaTest, OtherShapesThanATableHas_HaveTheBitsOfProductsWithoutOne) {
  const Parameter weight{Random({kN, kK}), {}};
  const at::Tensor x = Random({kM, kK}), more = Random({kM + 8, kK});
  const at::Tensor y = Linear(more, weight);
  const ProductKey key{.b_turned = true, .m = kM, .n = kN, .k = kK};
  const at::Tensor d = at::empty({kM, kN}, x.options());
  const std::vector<ProductAlgorithm> candidates =
      CandidatesOf(key, x, weight.weight, /*bias=*/{}, d);
  ASSERT_FALSE(candidates.empty());
  Use({{key, candidates[0]}});
  EXPECT_TRUE(at::equal(Linear(more, weight), y));
  EXPECT_TRUE(at::equal(Linear(x, weight), Linear(x, weight)));
}

// Rows with gaps, rows that are not at 16 bytes, and nothing at all.
TEST_F(ProductsCudaTest, OperandsThatNoTableHas_HaveNoKey) {
  const at::Tensor b = Random({kK, kN});
  const auto has = [&](const at::Tensor& a, const at::Tensor& of) {
    return fused::KeyOf(a, of, {}, at::kBFloat16, false).has_value();
  };
  EXPECT_TRUE(has(Random({kM, kK}), b));
  EXPECT_FALSE(has(Random({kM, kK + 8}).narrow(1, 0, kK), b));
  EXPECT_FALSE(has(Random({kM, 12}), Random({12, kN})));
  EXPECT_FALSE(has(Random({kM, kK}), Random({kK, 12})));
  EXPECT_FALSE(has(Random({kM * kK + 1}).narrow(0, 1, kM * kK).view({kM, kK}), b));
  EXPECT_FALSE(has(Random({0, kK}), b));
  EXPECT_FALSE(has(Random({kM, kK}).to(at::kFloat), b.to(at::kFloat)));
}

}  // namespace
}  // namespace phalanx::model

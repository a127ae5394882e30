// Casts to FP8 on CUDA equal those of devices without it, value by value; products equal those of
// the rounded operands in fp64.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/plan/plan.h"
#include "tests/support/specs.h"
#include "worker/model/cuda_product.h"
#include "worker/model/fp8.h"
#include "worker/model/kernels.h"
#include "worker/model/layer.h"
#include "worker/model/prepared.h"

namespace phalanx::model {
namespace {

constexpr std::pair<Fp8Format, at::ScalarType> kFormats[] = {{Fp8Format::kE4M3, at::kFloat8_e4m3fn},
                                                             {Fp8Format::kE5M2, at::kFloat8_e5m2}};

class Fp8CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().lazyInitDevice(at::kCUDA);
    if (!CheckFp8({at::kCUDA, 0}).ok()) GTEST_SKIP() << CheckFp8({at::kCUDA, 0});
    // Fills what at::empty returns with NaN.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::manual_seed(12);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  void MultiplyManyShapes();
  void MultiplyAnyRows();

  static at::Tensor Random(at::IntArrayRef shape, double deviation = 1) {
    return (at::randn(shape, at::TensorOptions(at::kCUDA)) * deviation).to(at::kBFloat16);
  }
  // In fp64, on the CPU.
  static at::Tensor Values(const at::Tensor& fp8, const at::Tensor& scale) {
    return fp8.cpu().to(at::kDouble) * scale.cpu().to(at::kDouble);
  }
  static at::Tensor Rounded(const at::Tensor& rows, Fp8Format format) {
    return RoundToFp8(rows.cpu().to(at::kDouble), format, Forms::kRows).rows;
  }
  static void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
    ASSERT_EQ(actual.sizes(), expected.sizes());
    const at::Tensor error = (actual.cpu().to(at::kDouble) - expected).norm();
    EXPECT_LE(error.item<double>(), tolerance * expected.norm().item<double>());
  }
};

struct CastShape {
  int64_t rows, features;
};
constexpr CastShape kCastShapes[] = {{0, 32},    {1, 8},      {3, 16},     {16, 128},  {129, 136},
                                     {300, 208}, {127, 1504}, {533, 1000}, {1100, 64}, {16, 40000}};

TEST_F(Fp8CudaTest, Small_Casts_EqualThoseOfTheCpu) {
  for (const auto& [format, type] : kFormats) {
    for (const auto& [rows, features] : kCastShapes) {
      for (const double deviation : {1.0, 1e-20, 3e4}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << features << " of " << deviation);
        const at::Tensor x = Random({rows, features}, deviation);
        const Operand both = RoundToFp8(x, format, Forms::kBoth);
        const Operand straight = RoundToFp8(x, format, Forms::kRows);
        const Operand turned = RoundToFp8(x, format, Forms::kColumns);
        ASSERT_TRUE(both.in_fp8() && both.rounded);
        ASSERT_EQ(both.rows.scalar_type(), type);
        ASSERT_EQ(both.columns.size(1) % 16, 0);
        EXPECT_FALSE(straight.columns.defined() || turned.rows.defined());
        if (rows == 0) continue;
        const at::Tensor values = Values(both.rows, both.scale);
        EXPECT_TRUE(at::equal(values, Rounded(x, format)));
        const at::Tensor columns = both.columns.cpu().view(at::kByte);
        EXPECT_TRUE(at::equal(columns.narrow(1, 0, rows), both.rows.cpu().view(at::kByte).t()));
        const at::Tensor behind = columns.narrow(1, rows, columns.size(1) - rows);
        EXPECT_FALSE(behind.any().item<bool>());
        EXPECT_TRUE(at::equal(straight.rows.view(at::kByte), both.rows.view(at::kByte)));
        EXPECT_TRUE(at::equal(turned.columns.view(at::kByte), both.columns.view(at::kByte)));
        EXPECT_TRUE(at::equal(straight.scale, both.scale));
      }
    }
  }
}

TEST_F(Fp8CudaTest, Small_WhatIsNotFinite_MakesAllOfItNaN) {
  for (const auto& [format, type] : kFormats) {
    for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      const at::Tensor x = Random({40, 48});
      x[17][33] = value;
      const Operand operand = RoundToFp8(x, format, Forms::kRows);
      EXPECT_TRUE(Values(operand.rows, operand.scale).isnan().all().item<bool>()) << type;
    }
    const Operand zero = RoundToFp8(at::zeros_like(Random({8, 16})), format, Forms::kRows);
    EXPECT_FALSE(Values(zero.rows, zero.scale).any().item<bool>()) << type;
  }
}

TEST_F(Fp8CudaTest, Small_CastsByAKnownLargest_AreTheSame) {
  const auto expect_same = [](const Operand& known, Fp8Format format) {
    ASSERT_TRUE(known.largest.defined());
    const Operand first = RoundToFp8(known, format, Forms::kBoth);
    const Operand second = RoundToFp8(known.rows, format, Forms::kBoth);
    EXPECT_TRUE(at::equal(first.rows.view(at::kByte), second.rows.view(at::kByte)));
    EXPECT_TRUE(at::equal(first.columns.view(at::kByte), second.columns.view(at::kByte)));
    EXPECT_TRUE(at::equal(first.scale.view(at::kInt), second.scale.view(at::kInt)));
  };
  for (const double value : {1.0, 0.0, 1e-20, 3e4, HUGE_VAL, std::nan("")}) {
    for (const auto& [rows, blocks, block] :
         {std::tuple{1, 1, 8}, {3, 1, 16}, {129, 2, 48}, {533, 3, 128}}) {
      SCOPED_TRACE(testing::Message()
                   << rows << ", " << blocks << " of " << block << ", " << value);
      const at::Tensor gate_up = Random({rows, 2 * blocks * block});
      gate_up[rows / 2][block] = value;
      const at::Tensor dy = Random({rows, blocks * block}, value);
      Operand active, gradient, normed, residual;
      active.rows = SwiGlu(gate_up, block, &active.largest);
      expect_same(active, Fp8Format::kE4M3);
      gradient.rows = SwiGluBackward(dy, gate_up, block, &gradient.largest);
      expect_same(gradient, Fp8Format::kE5M2);
      const at::Tensor weight = Random({blocks * block});
      RmsNormed norm = RmsNorm(dy, weight, 1e-5, &normed.largest);
      normed.rows = norm.y;
      expect_same(normed, Fp8Format::kE4M3);
      residual.rows = RmsNormBackward(active.rows, dy, norm.rstd, weight, dy, &residual.largest).x;
      expect_same(residual, Fp8Format::kE5M2);
    }
  }
}

// More scalars than are cleared together: none is used twice.
TEST_F(Fp8CudaTest, Small_ManyLargest_DoNotMeet) {
  std::vector<Operand> operands(2500);
  const at::Tensor gate_up = at::ones({1, 32}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  for (size_t i = 0; i < operands.size(); ++i) {
    gate_up.fill_(static_cast<double>(operands.size() - i));
    operands[i].rows = SwiGlu(gate_up, 16, &operands[i].largest);
  }
  for (const Operand& operand : operands)
    ASSERT_EQ(operand.largest.item<float>(), operand.rows.abs().max().item<float>());
}

// Rows that 16 does not divide, weights as they are and turned. Sums of E4M3 products in the tensor
// cores' own 14 bits are 2^-12 off at worst for each term that is added; bf16 results 2^-9.
TEST_F(Fp8CudaTest, ProductsOfALinear_EqualThoseOfRoundedOperands) {
  const int64_t version = 0;
  for (const int64_t rows : {0, 1, 5, 37, 400, 1000}) {
    for (const bool turned : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, turned " << turned);
      const at::Tensor stored = turned ? Random({208, 304}, 0.02) : Random({304, 208}, 0.02);
      const at::Tensor sums = at::ones_like(stored, at::TensorOptions(at::kFloat)) * 0.25;
      Parameter weight{turned ? stored.t() : stored, turned ? sums.t() : sums};
      weight.fp8 = std::make_shared<Fp8Weight>(weight.weight, /*backward=*/true, version);
      const at::Tensor x = Random({rows, 208}, 3), dy = Random({rows, 304}, 1e-4);
      const at::Tensor rounded_weight = Rounded(weight.weight.contiguous(), Fp8Format::kE4M3);
      const at::Tensor rounded_x = Rounded(x, Fp8Format::kE4M3);
      const at::Tensor rounded_dy = Rounded(dy, Fp8Format::kE5M2);
      Operand input, gradient;
      const at::Tensor y = Linear(x, weight, &input);
      const at::Tensor dx = LinearInputGradient(dy, weight, &gradient);
      EXPECT_FALSE(input.rows.defined() || gradient.rows.defined());
      WeightWork work;
      work.Matrix(weight, gradient, input);
      work.Run();
      const at::Tensor product = rounded_dy.t().mm(rounded_x);
      if (rows == 0) {
        EXPECT_EQ(y.size(0) + dx.size(0), 0);
        EXPECT_TRUE(weight.gradient.eq(0.25).all().item<bool>());
        continue;
      }
      ExpectClose(y, rounded_x.mm(rounded_weight.t()), 3e-3);
      ExpectClose(dx, rounded_dy.mm(rounded_weight), 3e-3);
      ExpectClose(weight.gradient - 0.25, product, 1e-3);
      EXPECT_TRUE(at::equal(Linear(x, weight), y)) << "not the same again";
      work.Matrix(weight, dy, x);  // rounded on the way
      work.Run();
      ExpectClose(weight.gradient - 0.25, 2 * product, 1e-3);
    }
  }
}

// All passes of two decoder layers. Sequences are so short that attention adds up in one order.
std::vector<at::Tensor> PassesOfLayers(job::Recompute recompute, const RowChoice& leaving,
                                       bool largest_on_the_way) {
  const SequenceShape shape{.batch = 3, .length = 48, .leaving = leaving};
  const plan::Plan plan =
      *plan::MakePlan(support::AJob()
                          .Module("language", support::Llama({.hidden_size = 256,
                                                              .layers = 2,
                                                              .heads = 4,
                                                              .kv_heads = 2,
                                                              .mlp_size = 320,
                                                              .block = 32,
                                                              .context = 64}))
                          .Compute(job::Precision::kBf16),
                      plan::MakeCluster(1, 1), Epoch{1});
  const plan::StageParameters parameters = plan::ParametersOf(plan, {.module = 0});
  const job::Architecture& a = plan.module_spec(0).architecture;
  at::manual_seed(13);
  const auto random = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  };
  const at::Tensor weights = random({parameters.elements}).mul_(0.1);
  const at::Tensor gradients = at::zeros({parameters.elements}, at::TensorOptions(at::kCUDA));
  const at::Tensor angles = random({a.context, plan::HeadSize(a) / 2}).to(at::kFloat);
  const ParameterTable table(parameters, weights, gradients);
  LayerContext context;
  context.architecture = a;
  context.recompute = recompute;
  context.fp8 = true;
  context.largest_on_the_way = largest_on_the_way;
  context.heads = MakeHeadMap(plan::TensorUnitsOf(a, 1, 0), a.heads / plan::KvHeads(a),
                              plan::HeadSize(a), {at::kCUDA, 0});
  context.cos = angles.cos();
  context.sin = angles.sin();
  const std::unique_ptr<Layer> first = MakeDecoderLayer(context, table, 0);
  const std::unique_ptr<Layer> second = MakeDecoderLayer(context, table, 1);
  const SequenceShape whole{shape.batch, shape.length};
  LayerState of_first, of_second;
  LayerRows between, output;
  EXPECT_TRUE(
      first->Forward(random({shape.rows(), a.hidden_size}), whole, &of_first, &between).ok());
  EXPECT_TRUE(second->Forward(std::move(between), shape, &of_second, &output).ok());
  output.Add();
  WeightWork work;
  Operand middle, gradient;
  EXPECT_TRUE(
      second->BackwardInput(random(output.rows.sizes()), shape, &of_second, &work, &middle).ok());
  EXPECT_EQ(middle.largest.defined(), largest_on_the_way);
  EXPECT_TRUE(first->BackwardInput(middle, whole, &of_first, &work, &gradient).ok());
  work.Run();
  return {output.rows, gradient.rows, gradients};
}

TEST_F(Fp8CudaTest, Layers_WithPassesForTheLargest_GiveTheSameBits) {
  const at::Tensor all = at::arange(144, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  const RowChoice third{.rows = all.slice(0, 0, 144, 3).contiguous(),
                        .place = all.div(3, "floor"),
                        .chosen = all.remainder(3).eq(0)};
  for (const job::Recompute recompute :
       {job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {
    for (const bool some : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(recompute) << ", some rows " << some);
      const RowChoice leaving = some ? third : RowChoice{};
      const std::vector<at::Tensor> apart = PassesOfLayers(recompute, leaving, false);
      const std::vector<at::Tensor> again = PassesOfLayers(recompute, leaving, false);
      const std::vector<at::Tensor> fused = PassesOfLayers(recompute, leaving, true);
      for (size_t i = 0; i < apart.size(); ++i) {
        EXPECT_TRUE(apart[i].isfinite().all().item<bool>()) << i;
        EXPECT_TRUE(at::equal(apart[i], again[i])) << i << " is not the same again";
        EXPECT_TRUE(at::equal(apart[i], fused[i])) << i;
      }
    }
  }
}

// On a thread of its own, which has met them then.
TEST_F(Fp8CudaTest, MoreShapesThanAreRemembered_GiveTheSameProducts) {
  std::thread([this] { MultiplyManyShapes(); }).join();
}

void Fp8CudaTest::MultiplyManyShapes() {
  const auto shapes = static_cast<int64_t>(cuda::kDescribedMax) + 100;
  const Operand a = RoundToFp8(Random({37, 208}), Fp8Format::kE4M3, Forms::kRows);
  const Operand b = RoundToFp8(Random({16 * shapes, 208}), Fp8Format::kE4M3, Forms::kRows);
  const auto product = [&](int64_t shape) {
    return Fp8Product(a.rows, a.scale, b.rows.narrow(0, 0, 16 * shape), b.scale, Fp8Sums::kFast);
  };
  const at::Tensor first = product(19);
  for (int64_t shape = 1; shape < shapes; ++shape) ASSERT_EQ(product(shape).size(1), 16 * shape);
  EXPECT_TRUE(at::equal(product(19), first));
  ExpectClose(product(shapes), Values(a.rows, a.scale).mm(Values(b.rows, b.scale).t()), 3e-3);
}

TEST(ShapeRowsTest, AreFewAndNoneIsSmaller) {
  std::set<int64_t> shapes;
  for (int64_t rows = 1; rows <= 32'768; ++rows) {
    const int64_t shape = cuda::ShapeRows(rows);
    ASSERT_GE(shape, rows);
    ASSERT_LT(shape, std::max<int64_t>(17, rows + rows / 4 + 16));
    ASSERT_EQ(shape % 16, 0);
    shapes.insert(shape);
  }
  EXPECT_EQ(shapes.size(), 4 + 4 * 9);
  for (const int64_t power : {16, 64, 4'096, 32'768}) EXPECT_EQ(cuda::ShapeRows(power), power);
}

// As samples bring them: products of any number of rows, and sums over them, by few descriptions.
TEST_F(Fp8CudaTest, RowsThatVary_AreDescribedByFewShapes) {
  std::thread([this] { MultiplyAnyRows(); }).join();
}

void Fp8CudaTest::MultiplyAnyRows() {
  constexpr int64_t kMost = 3'000;
  const Operand a = RoundToFp8(Random({kMost, 208}), Fp8Format::kE4M3, Forms::kRows);
  const Operand b = RoundToFp8(Random({304, 208}), Fp8Format::kE4M3, Forms::kRows);
  const at::Tensor x = Random({kMost, 304});
  const at::Tensor expected = Values(a.rows, a.scale).mm(Values(b.rows, b.scale).t());
  const int64_t before = CountPreparations().fp8_products;
  for (int64_t rows = 1; rows <= kMost; rows += 13) {
    SCOPED_TRACE(rows);
    const at::Tensor product =
        Fp8Product(a.rows.narrow(0, 0, rows), a.scale, b.rows, b.scale, Fp8Sums::kFast);
    ExpectClose(product, expected.narrow(0, 0, rows), 3e-3);
    const at::Tensor part = x.narrow(0, 0, rows);
    const Operand turned = RoundToFp8(part, Fp8Format::kE4M3, Forms::kColumns);
    const at::Tensor sum = at::zeros({304, 304}, at::TensorOptions(x.device()).dtype(at::kFloat));
    AddFp8Product(sum, turned.columns, turned.scale, turned.columns, turned.scale);
    const at::Tensor values = Values(turned.columns, turned.scale);
    ExpectClose(sum, values.mm(values.t()), 1e-3);
  }
  const int64_t shapes = 4 + 4 * 6;  // up to 3,072 rows
  EXPECT_LE(CountPreparations().fp8_products - before, 2 * shapes);
}

}  // namespace
}  // namespace phalanx::model

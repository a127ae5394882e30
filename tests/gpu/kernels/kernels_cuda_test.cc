// The kernels behind kernels.h on CUDA: equal to their definitions in fp64, whatever the size, and
// to themselves, bit for bit. Results are NaN before a kernel writes them.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/model/kernels.h"

namespace phalanx::model {
namespace {

using Tensors = std::vector<at::Tensor>;

class KernelsCudaTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().lazyInitDevice(at::kCUDA);
    // Fills what at::empty returns with NaN.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::manual_seed(11);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  static at::Tensor Random(at::IntArrayRef shape, at::ScalarType type = GetParam()) {
    return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(type);
  }
  static at::Tensor Indices(int64_t below, int64_t count) {
    return at::randint(below, {count}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  }
  static at::Tensor Wide(const at::Tensor& tensor) { return tensor.to(at::kDouble); }

  // bf16 rounds to 2^-8 of a value at worst; what is kept in fp32 to 2^-24, and sums lose some
  // more.
  static double Tolerance(const at::Tensor& actual) {
    return actual.scalar_type() == at::kBFloat16 ? 4e-3 : 2e-6;
  }
  static void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, const char* what,
                          double tolerance = 0) {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
    if (actual.numel() == 0) return;
    const double error = (Wide(actual) - expected).norm().item<double>();
    EXPECT_LE(error, (tolerance > 0 ? tolerance : Tolerance(actual)) *
                         std::max(1e-9, expected.norm().item<double>()))
        << what;
  }
  // Runs `body` twice; both times the same bits.
  static Tensors Twice(const std::function<Tensors()>& body) {
    Tensors first = body();
    const Tensors second = body();
    for (size_t i = 0; i < first.size(); ++i) {
      if (!first[i].defined()) continue;
      EXPECT_TRUE(at::equal(first[i], second[i])) << "result " << i << " is not the same again";
    }
    return first;
  }
};

// Rows of one access, of some, of more than a group takes at once; odd ones; and so many rows that
// blocks take several, fewer than blocks, and none.
struct Shape {
  int64_t rows, features;
};
const std::vector<Shape> kShapes = {{0, 64},    {1, 8},      {3, 5},      {7, 37},      {300, 64},
                                    {19, 250},  {533, 1000}, {40, 1024},  {1100, 1152}, {5, 1536},
                                    {31, 1501}, {70, 2500},  {600, 4096}, {33, 4091},   {21, 8192}};
constexpr Shape kTooLong = {2, 40001}, kTooLongAndOdd = {3, 8001};
// Norms of the longest rows that the kernels take, and longer ones: by ATen.
std::vector<Shape> NormShapes(at::ScalarType type) {
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({9, type == at::kBFloat16 ? 16000 : 8000});
  shapes.push_back(kTooLongAndOdd);
  shapes.push_back(kTooLong);
  return shapes;
}
TEST_P(KernelsCudaTest, Small_RmsNorm_AndBackward) {
  for (const auto& [rows, features] : NormShapes(GetParam())) {
    SCOPED_TRACE(testing::Message() << rows << " x " << features);
    const at::Tensor residual = Random({rows, features}), branch = Random({rows, features});
    const at::Tensor weight = Random({features}), dy = Random({rows, features});
    const at::Tensor x = (Wide(residual) + Wide(branch)).to(GetParam());
    const at::Tensor rstd = at::rsqrt(Wide(x).square().mean(1, true) + 1e-5);
    const at::Tensor normed = Wide(x) * rstd;
    const Tensors forward = Twice([&] {
      const at::Tensor sum = branch.clone();
      const RmsNormed added = AddRmsNorm(residual, sum, weight, 1e-5);
      return Tensors{sum, added.y, added.rstd, RmsNorm(x, weight, 1e-5).y};
    });
    ExpectClose(forward[0], Wide(x), "sum");
    ExpectClose(forward[1], normed * Wide(weight), "y", 2 * Tolerance(x));
    ExpectClose(forward[2].view({-1, 1}), rstd, "rstd", 2 * Tolerance(x));
    ExpectClose(forward[3], normed * Wide(weight), "y without a branch");
    const at::Tensor g = Wide(dy) * Wide(weight);
    const at::Tensor dx = rstd * (g - normed * (g * normed).mean(1, true));
    const Tensors backward = Twice([&] {
      const NormGradient plain = RmsNormBackward(dy, x, rstd.to(at::kFloat), weight, {});
      const NormGradient joined = RmsNormBackward(dy, x, rstd.to(at::kFloat), weight, residual);
      return Tensors{plain.x, plain.weight, joined.x, joined.weight};
    });
    ExpectClose(backward[0], dx, "dx");
    ExpectClose(backward[1], (Wide(dy) * normed).sum(0), "dweight");
    ExpectClose(backward[2], dx + Wide(residual), "dx with the residual's",
                features == kTooLong.features ? 2 * Tolerance(x) : 0);
    EXPECT_TRUE(at::equal(backward[1], backward[3]));
  }
}

TEST_P(KernelsCudaTest, Small_LayerNorm_AndBackward) {
  for (const auto& [rows, features] : NormShapes(GetParam())) {
    SCOPED_TRACE(testing::Message() << rows << " x " << features);
    const at::Tensor residual = Random({rows, features}), branch = Random({rows, features});
    const at::Tensor weight = Random({features}), bias = Random({features});
    const at::Tensor branch_bias = Random({features}), dy = Random({rows, features});
    const Tensors forward = Twice([&] {
      const at::Tensor sum = branch.clone(), ended = branch.clone();
      const LayerNormed added = AddLayerNorm(residual, sum, branch_bias, weight, bias, 1e-5);
      AddBiasAndResidual(ended, branch_bias, residual);
      return Tensors{sum, added.y, LayerNorm(residual, weight, bias, 1e-5).y, ended};
    });
    const at::Tensor added = Wide(residual) + Wide(branch) + Wide(branch_bias);
    const auto norm = [&](const at::Tensor& x) {
      const at::Tensor centred = Wide(x) - Wide(x).mean(1, true);
      return centred * at::rsqrt(centred.square().mean(1, true) + 1e-5);
    };
    const double rough = features == kTooLong.features ? 2 * Tolerance(dy) : 0;  // rounded twice
    ExpectClose(forward[0], added, "sum", rough);
    ExpectClose(forward[1], norm(forward[0]) * Wide(weight) + Wide(bias), "y");
    ExpectClose(forward[2], norm(residual) * Wide(weight) + Wide(bias), "y without a branch");
    ExpectClose(forward[3], added, "branch + bias + residual");

    const at::Tensor x = forward[0];
    const LayerNormed normed = LayerNorm(x, weight, bias, 1e-5);
    const at::Tensor rstd =
        at::rsqrt((Wide(x) - Wide(x).mean(1, true)).square().mean(1, true) + 1e-5);
    const at::Tensor g = Wide(dy) * Wide(weight);
    const at::Tensor dx =
        rstd * (g - g.mean(1, true) - norm(x) * (g * norm(x)).mean(1, true)) + Wide(residual);
    const Tensors backward = Twice([&] {
      const NormGradient two = LayerNormBackward(dy, x, normed, weight, bias, residual);
      const NormGradient four = LayerNormBackward(dy, x, normed, weight, bias, residual, true);
      return Tensors{two.x,       two.weight, two.bias,          four.x,
                     four.weight, four.bias,  four.residual_sum, four.x_sum};
    });
    ExpectClose(backward[0], dx, "dx", rough);
    ExpectClose(backward[1], (Wide(dy) * norm(x)).sum(0), "dweight");
    ExpectClose(backward[2], Wide(dy).sum(0), "dbias");
    EXPECT_TRUE(at::equal(backward[0], backward[3]));
    ExpectClose(backward[4], Wide(backward[1]), "dweight with more sums");
    ExpectClose(backward[5], Wide(backward[2]), "dbias with more sums");
    if (!backward[7].defined()) continue;
    ExpectClose(backward[6], Wide(residual).sum(0), "sum of the residual's");
    ExpectClose(backward[7], dx.sum(0), "sum of dx");
  }
}

// What kernels find along the way is what a look at the result finds, and changes nothing of it;
// of rows that they do not take they find nothing.
TEST_P(KernelsCudaTest, Small_Largest_IsThatOfTheResult) {
  const auto expect_largest = [](const std::function<at::Tensor(at::Tensor*)>& make,
                                 const char* what) {
    at::Tensor largest;
    const at::Tensor made = make(&largest), plain = make(nullptr);
    EXPECT_TRUE(at::equal(made.nan_to_num(), plain.nan_to_num())) << what;
    EXPECT_TRUE(at::equal(made.isnan(), plain.isnan())) << what;
    const int64_t features = made.size(-1);
    if (features == kTooLong.features || features == kTooLongAndOdd.features) {
      EXPECT_FALSE(largest.defined()) << what;
      return;
    }
    ASSERT_TRUE(largest.defined()) << what;
    const float found = largest.item<float>();
    const float expected = made.numel() == 0 ? 0 : made.abs().max().item<float>();
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found)) << what << ": " << found;
    } else {
      EXPECT_EQ(found, expected) << what;
    }
  };
  // Nothing, or what is not finite, in one place.
  for (const double odd : {0.0, -HUGE_VAL, std::nan("")}) {
    const auto random = [odd](at::IntArrayRef shape) {
      const at::Tensor tensor = Random(shape);
      if (odd != 0 && tensor.numel() > 0) tensor.view({-1})[tensor.numel() * 2 / 3] = odd;
      return tensor;
    };
    for (const auto& [rows, features] : NormShapes(GetParam())) {
      SCOPED_TRACE(testing::Message() << rows << " x " << features << " with " << odd);
      const at::Tensor x = random({rows, features}), other = Random({rows, features});
      const at::Tensor weight = Random({features});
      const at::Tensor rstd = at::ones({rows, 1}, x.options().dtype(at::kFloat));
      expect_largest([&](at::Tensor* largest) { return RmsNorm(x, weight, 1e-5, largest).y; },
                     "norm");
      expect_largest(
          [&](at::Tensor* largest) {
            return AddRmsNorm(other, x.clone(), weight, 1e-5, largest).y;
          },
          "norm of a sum");
      for (const at::Tensor& residual : {at::Tensor(), x}) {
        expect_largest(
            [&](at::Tensor* largest) {
              return RmsNormBackward(x, other, rstd, weight, residual, largest).x;
            },
            "norm's backward pass");
      }
    }
    for (const auto& [rows, blocks, block] : {std::tuple{0, 2, 128},
                                              {1, 1, 8},
                                              {3, 1, 7},
                                              {5, 3, 32},
                                              {19, 7, 128},
                                              {300, 2, 250},
                                              {77, 3, 1000}}) {
      SCOPED_TRACE(testing::Message() << rows << ", " << blocks << " of " << block << " " << odd);
      const at::Tensor gate_up = random({rows, 2 * block * blocks});
      const at::Tensor dy = random({rows, block * blocks});
      expect_largest([&](at::Tensor* largest) { return SwiGlu(gate_up, block, largest); },
                     "SwiGLU");
      expect_largest(
          [&](at::Tensor* largest) { return SwiGluBackward(dy, gate_up, block, largest); },
          "SwiGLU's backward pass");
    }
    for (const auto& [head_size, queries, keys] :
         {std::tuple{64, 3, 1}, {128, 32, 8}, {80, 4, 4}, {10, 2, 1}, {36, 5, 2}, {130, 9, 3}}) {
      SCOPED_TRACE(testing::Message() << queries << " heads of " << head_size << " " << odd);
      const int64_t batch = 3, length = 7;
      const at::Tensor query = random({batch, queries, length, head_size});
      const at::Tensor key = Random({batch, keys, length, head_size}), value = Random(key.sizes());
      const at::Tensor angles = Random({length, head_size / 2}, at::kFloat);
      expect_largest(
          [&](at::Tensor* largest) {
            const at::Tensor packed =
                at::empty({batch, length, queries + 2 * keys, head_size}, query.options());
            PackHeads(query, key, value, angles.cos(), angles.sin(), packed, largest);
            return packed;
          },
          "packed heads");
    }
  }
}

// q, k and v in one packed tensor: heads that turn, and heads that stay.
TEST_P(KernelsCudaTest, Small_Rotate_TurnsTheFirstHeadsAndBack) {
  for (const auto& [head_size, heads, all] :
       {std::tuple{64, 3, 4}, {80, 5, 7}, {96, 40, 48}, {128, 40, 48}, {10, 2, 3}, {36, 2, 2}}) {
    SCOPED_TRACE(testing::Message() << heads << " of " << all << " heads of " << head_size);
    const int64_t batch = 2, length = 9, half = head_size / 2;
    const at::Tensor angles =
        at::rand({length + 3, half}, at::TensorOptions(at::kCUDA).dtype(at::kDouble)) * 6;
    const at::Tensor cos = angles.cos().to(at::kFloat), sin = angles.sin().to(at::kFloat);
    const at::Tensor x = Random({batch, length, all, head_size});
    const Tensors turned = Twice([&] {
      const at::Tensor forth = x.clone();
      Rotate(forth, heads, cos, sin, /*inverse=*/false);
      const at::Tensor back = forth.clone();
      Rotate(back, heads, cos, sin, /*inverse=*/true);
      return Tensors{forth, back};
    });
    const at::Tensor wide = Wide(x).narrow(2, 0, heads);
    const at::Tensor a = wide.narrow(3, 0, half), b = wide.narrow(3, half, half);
    const at::Tensor c = Wide(cos).narrow(0, 0, length).unsqueeze(1),
                     s = Wide(sin).narrow(0, 0, length).unsqueeze(1);
    ExpectClose(turned[0].narrow(2, 0, heads), at::cat({a * c - b * s, b * c + a * s}, 3), "forth");
    ExpectClose(turned[1], Wide(x), "back", 2 * Tolerance(x));
    EXPECT_TRUE(
        at::equal(turned[0].narrow(2, heads, all - heads), x.narrow(2, heads, all - heads)));
  }
}

// Parts as attention's backward pass leaves them: positions before heads, rows apart or together.
TEST_P(KernelsCudaTest, Small_PackHeads_TurnsQueriesAndKeysBack) {
  for (const auto& [head_size, queries, keys, apart] : {std::tuple{64, 3, 1, 0},
                                                        {128, 32, 8, 0},
                                                        {80, 4, 4, 8},
                                                        {10, 2, 1, 0},
                                                        {36, 5, 2, 3},
                                                        {130, 9, 3, 0},
                                                        {96, 1, 1, 160}}) {
    SCOPED_TRACE(testing::Message() << queries << " and " << keys << " heads of " << head_size);
    const int64_t batch = 3, length = 7, half = head_size / 2;
    const auto part = [&](int64_t heads) {
      return Random({batch, length, heads, head_size + apart})
          .narrow(3, 0, head_size)
          .transpose(1, 2);
    };
    const at::Tensor query = part(queries), key = part(keys), value = part(keys);
    const at::Tensor angles =
        at::rand({length + 3, half}, at::TensorOptions(at::kCUDA).dtype(at::kDouble)) * 6;
    const at::Tensor cos = angles.cos().to(at::kFloat), sin = angles.sin().to(at::kFloat);
    const Tensors packed = Twice([&] {
      const at::Tensor like =
          at::empty({batch, length, queries + 2 * keys, head_size}, query.options());
      const at::Tensor plain = at::empty_like(like);
      PackHeads(query, key, value, cos, sin, like);
      PackHeads(query, key, value, {}, {}, plain);
      return Tensors{like, plain};
    });
    const at::Tensor heads = at::cat({query, key, value}, 1).transpose(1, 2);
    EXPECT_TRUE(at::equal(packed[1], heads));
    const at::Tensor a = Wide(heads).narrow(3, 0, half), b = Wide(heads).narrow(3, half, half);
    const at::Tensor c = Wide(cos).narrow(0, 0, length).unsqueeze(1),
                     s = Wide(sin).narrow(0, 0, length).unsqueeze(1);
    const at::Tensor back = at::cat({a * c + b * s, b * c - a * s}, 3);
    const int64_t turned = queries + keys;
    ExpectClose(packed[0].narrow(2, 0, turned), back.narrow(2, 0, turned), "turned back");
    EXPECT_TRUE(at::equal(packed[0].narrow(2, turned, keys), heads.narrow(2, turned, keys)));
  }
}

TEST_P(KernelsCudaTest, Small_SwiGlu_AndBackward) {
  for (const auto& [rows, blocks, block] :
       {std::tuple{0, 2, 128}, {3, 1, 7}, {5, 3, 32}, {19, 7, 128}, {300, 2, 250}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << blocks << " blocks of " << block);
    const at::Tensor gate_up = Random({rows, 2 * block * blocks}) * 3;
    const at::Tensor dy = Random({rows, block * blocks});
    const at::Tensor pairs = Wide(gate_up).view({rows, blocks, 2, block});
    const at::Tensor gate = pairs.select(2, 0), up = pairs.select(2, 1);
    const at::Tensor sigmoid = at::sigmoid(gate), upstream = Wide(dy).view({rows, blocks, block});
    const Tensors results = Twice([&] {
      return Tensors{SwiGlu(gate_up, block), SwiGluBackward(dy, gate_up, block)};
    });
    ExpectClose(results[0], (gate * sigmoid * up).view_as(dy), "y");
    const at::Tensor gradient = at::stack(
        {upstream * up * sigmoid * (1 + gate * (1 - sigmoid)), upstream * gate * sigmoid}, 2);
    ExpectClose(results[1], gradient.view_as(gate_up), "gradient");
  }
}

TEST_P(KernelsCudaTest, Small_Gelus_AndBackward) {
  for (const GeluKind kind : {GeluKind::kQuick, GeluKind::kErf, GeluKind::kTanh}) {
    for (const auto& [rows, features] : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << rows << " x " << features << ", " << static_cast<int>(kind));
      const at::Tensor x = Random({rows, features}) * 3, dy = Random({rows, features});
      at::Tensor leaf = Wide(x).detach().requires_grad_(true);
      const at::Tensor y = kind == GeluKind::kQuick
                               ? leaf * at::sigmoid(leaf * 1.702)
                               : at::gelu(leaf, kind == GeluKind::kTanh ? "tanh" : "none");
      (y * Wide(dy)).sum().backward();
      const Tensors results = Twice([&] {
        const GeluGradient gradient = GeluBackward(kind, dy, x, /*column_sums=*/true);
        return Tensors{Gelu(kind, x), gradient.x, gradient.sum, GeluBackward(kind, dy, x).x};
      });
      ExpectClose(results[0], y.detach(), "y");
      ExpectClose(results[1], leaf.grad(), "gradient");
      ExpectClose(results[2], leaf.grad().sum(0), "sum");
      EXPECT_TRUE(at::equal(results[1], results[3]));
    }
  }
}

TEST_P(KernelsCudaTest, Small_Activations_OfLargeInputs_StayFinite) {
  const at::Tensor x = at::tensor({-1e4, -90.0, -88.0, -10.0, 10.0, 88.0, 90.0, 1e4}, at::kDouble)
                           .cuda()
                           .to(GetParam())
                           .unsqueeze(0);
  const at::Tensor ones = at::ones_like(x);
  for (const GeluKind kind : {GeluKind::kQuick, GeluKind::kErf, GeluKind::kTanh}) {
    ExpectClose(Gelu(kind, x), Wide(x).clamp_min(0), "y");
    ExpectClose(GeluBackward(kind, ones, x).x, Wide(x).gt(0).to(at::kDouble), "gradient");
  }
  EXPECT_TRUE(at::isfinite(SwiGluBackward(ones, at::cat({x, ones}, 1), 8)).all().item<bool>());
}

TEST_P(KernelsCudaTest, Small_ColumnSums_OfSomeColumns) {
  for (const auto& [rows, features] : kShapes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << features);
    const at::Tensor values = Random({rows, 3 * features});
    const at::Tensor sum = Random({features}, at::kFloat);
    for (const int64_t first : {int64_t{0}, features}) {
      const at::Tensor part = values.narrow(1, first, features);
      const Tensors results = Twice([&] {
        const at::Tensor total = sum.clone();
        AddColumnSums(total, part);
        return Tensors{total};
      });
      ExpectClose(results[0], Wide(sum) + Wide(part).sum(0), "sum");
    }
  }
}

TEST_P(KernelsCudaTest, Small_ColumnSums_OfMatrices) {
  const at::Tensor values = Random({6, 77, 136}), sum = Random({77, 136}, at::kFloat);
  const at::Tensor total = sum.clone();
  AddColumnSums(total, values);
  ExpectClose(total, Wide(sum) + Wide(values).sum(0), "sum");
}

TEST_P(KernelsCudaTest, Small_Rows_TakenAddedAndScattered) {
  // Tables of many rows, and of so few that runs of equal ones are longer than chunks.
  for (const auto& [count, features, table_rows] : {std::tuple{0, 64, 5},
                                                    {1, 37, 3},
                                                    {50, 5, 1},
                                                    {333, 64, 3},
                                                    {700, 1152, 1000},
                                                    {64, 4096, 20},
                                                    {16, 2052, 1}}) {
    SCOPED_TRACE(testing::Message() << count << " x " << features << " of " << table_rows);
    const at::Tensor table = Random({table_rows, features}), values = Random({count, features});
    const at::Tensor index = Indices(table_rows, count);
    const at::Tensor keep = at::rand({count}, at::kFloat).gt(0.3).cuda();
    for (const at::Tensor& kept : {at::Tensor(), keep}) {
      const at::Tensor mask =
          kept.defined() ? kept.to(at::kDouble).unsqueeze(1)
                         : at::ones({count, 1}, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
      const at::Tensor sum = Random({table_rows, features}, at::kFloat);
      const Tensors results = Twice([&] {
        const at::Tensor total = sum.clone(), rows = table.clone();
        AddRows(total, index, kept, values);
        ScatterRows(rows, index, values.t().contiguous().t());
        return Tensors{TakeRows(table, index, kept), total, rows};
      });
      EXPECT_TRUE(at::equal(Wide(results[0]), Wide(table).index_select(0, index) * mask));
      ExpectClose(results[1], Wide(sum).index_add(0, index, Wide(values) * mask), "sum");
      ExpectClose(results[2], Wide(table).index_add(0, index, Wide(values)), "scattered");
    }
  }
}

// A vocabulary whole, and cut in two; rows that begin anywhere, rows without weight, labels in
// both parts.
TEST_P(KernelsCudaTest, Small_CrossEntropy_WholeAndOverTwoRanks) {
  for (const auto& [rows, vocabulary, cut] : {std::tuple{0, 64, 32},
                                              {1, 5, 2},
                                              {7, 45, 26},
                                              {150, 8192, 4096},
                                              {40, 32003, 16000},
                                              {9, 50257, 1}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << vocabulary);
    const at::Tensor logits = Random({rows, vocabulary}) * 4;
    const at::Tensor labels = Indices(vocabulary, rows);
    const at::Tensor weights = at::rand({rows}, at::TensorOptions(at::kCUDA)).sub_(0.3).relu_();
    const at::Tensor log = at::log_softmax(Wide(logits), 1);
    const at::Tensor losses = -log.gather(1, labels.unsqueeze(1)).squeeze(1);
    const at::Tensor loss = (losses * Wide(weights)).sum();
    const at::Tensor gradient =
        (log.exp() - at::one_hot(labels, vocabulary)) * Wide(weights).unsqueeze(1);
    const Tensors results = Twice([&] {
      const auto part = [&](int64_t begin, int64_t count) {
        return logits.narrow(1, begin, count).clone(at::MemoryFormat::Contiguous);
      };
      const at::Tensor whole = logits.clone(), low = part(0, cut),
                       high = part(cut, vocabulary - cut);
      const at::Tensor alone = WholeCrossEntropy(whole, labels, weights, false);
      EXPECT_TRUE(at::equal(whole, logits));
      const at::Tensor gathered = at::stack({SoftmaxStatistics(low, labels, weights, 0),
                                             SoftmaxStatistics(high, labels, weights, cut)});
      const at::Tensor parted = CrossEntropy(low, gathered, labels, weights, 0, false);
      EXPECT_TRUE(at::equal(low, logits.narrow(1, 0, cut)));
      const at::Tensor beside = WholeCrossEntropy(whole, labels, weights, true);
      EXPECT_TRUE(at::equal(parted, CrossEntropy(low, gathered, labels, weights, 0, true)));
      EXPECT_TRUE(at::equal(parted, CrossEntropy(high, gathered, labels, weights, cut, true)));
      return Tensors{alone, parted, whole, at::cat({low, high}, 1), beside};
    });
    ExpectClose(results[0], loss, "loss");
    ExpectClose(results[1], loss, "loss over two ranks");
    ExpectClose(results[4], loss, "loss beside the gradient");
    ExpectClose(results[2], gradient, "gradient", 2 * Tolerance(logits));
    ExpectClose(results[3], gradient, "gradient over two ranks", 2 * Tolerance(logits));
  }
}

// Sizes of a training step, where 32 bits or one launch's blocks might not do.
TEST_P(KernelsCudaTest, LargeVocabularies_EqualDefinition) {
  for (const auto& [rows, vocabulary] : {std::pair{300, 128256}, {150, 151936}, {140, 262144}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << vocabulary);
    const at::Tensor logits = Random({rows, vocabulary}) * 4;
    const at::Tensor labels = Indices(vocabulary, rows);
    const at::Tensor weights = at::rand({rows}, at::TensorOptions(at::kCUDA)).sub_(0.3).relu_();
    const at::Tensor log = at::log_softmax(Wide(logits), 1);
    const at::Tensor loss = (-log.gather(1, labels.unsqueeze(1)).squeeze(1) * Wide(weights)).sum();
    at::Tensor gradient = log.exp();
    gradient.scatter_add_(1, labels.unsqueeze(1), at::full({rows, 1}, -1.0, log.options()));
    gradient.mul_(Wide(weights).unsqueeze(1));
    const Tensors results = Twice([&] {
      const at::Tensor whole = logits.clone();
      return Tensors{WholeCrossEntropy(whole, labels, weights, true), whole};
    });
    ExpectClose(results[0], loss, "loss");
    ExpectClose(results[1], gradient, "gradient", 2 * Tolerance(logits));
  }
}

TEST_P(KernelsCudaTest, LargeSwiGlu_EqualsDefinition) {
  const int64_t rows = 20000, block = 128, blocks = 112;
  const at::Tensor gate_up = Random({rows, 2 * block * blocks});
  const at::Tensor y = SwiGlu(gate_up, block);
  for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
    const at::Tensor pairs = Wide(gate_up[row]).view({blocks, 2, block});
    ExpectClose(y[row], (at::silu(pairs.select(1, 0)) * pairs.select(1, 1)).reshape({-1}), "y");
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KernelsCudaTest, testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& info) {
                           return info.param == at::kFloat ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace phalanx::model

// Every kernel against LibTorch autograd on its definition.
#include "worker/model/kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

namespace phalanx::model {
namespace {

// Rows that no vector width divides, so that loops have tails.
constexpr int64_t kRows = 5, kFeatures = 37;

struct Precision {
  at::ScalarType type;
  double tolerance;
};
void PrintTo(const Precision& precision, std::ostream* out) { *out << precision.type; }

class KernelsTest : public testing::TestWithParam<Precision> {
 protected:
  KernelsTest() { at::manual_seed(3); }
  at::Tensor Random(at::IntArrayRef shape) const {
    return at::randn(shape, at::kDouble).to(GetParam().type);
  }
  void ExpectClose(const at::Tensor& actual, const at::Tensor& expected) const {
    ASSERT_EQ(actual.sizes(), expected.sizes());
    const at::Tensor wide = expected.to(at::kDouble);
    const double scale = std::max(1e-3, wide.abs().max().item<double>());
    EXPECT_LE((actual.to(at::kDouble) - wide).abs().max().item<double>(),
              GetParam().tolerance * scale);
  }
  // Gradients of sum(f(leaves) * upstream), in fp64.
  static std::vector<at::Tensor> Gradients(
      std::vector<at::Tensor> leaves, const at::Tensor& upstream,
      const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f) {
    for (at::Tensor& leaf : leaves)
      leaf = leaf.to(at::kDouble).detach().clone().set_requires_grad(true);
    (f(leaves) * upstream.to(at::kDouble)).sum().backward();
    for (at::Tensor& leaf : leaves) leaf = leaf.grad();
    return leaves;
  }
};

at::Tensor PlainRmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return x * at::rsqrt(x.square().mean(1, true) + epsilon) * weight;
}

TEST_P(KernelsTest, RmsNorm_EqualsDefinition) {
  const at::Tensor x = Random({kRows, kFeatures}), weight = Random({kFeatures});
  ExpectClose(RmsNorm(x, weight, 1e-2).y,
              PlainRmsNorm(x.to(at::kDouble), weight.to(at::kDouble), 1e-2));
}

TEST_P(KernelsTest, AddRmsNorm_AddsInPlaceThenNorms) {
  const at::Tensor residual = Random({kRows, kFeatures}), branch = Random({kRows, kFeatures});
  const at::Tensor weight = Random({kFeatures}), sum = residual + branch;
  const RmsNormed normed = AddRmsNorm(residual, branch, weight, 1e-5);
  ExpectClose(branch, sum);
  ExpectClose(normed.y, RmsNorm(sum, weight, 1e-5).y);
}

TEST_P(KernelsTest, RmsNormBackward_EqualsAutograd) {
  const at::Tensor x = Random({kRows, kFeatures}), weight = Random({kFeatures});
  const at::Tensor upstream = Random({kRows, kFeatures}), residual = Random({kRows, kFeatures});
  const RmsNormed normed = RmsNorm(x, weight, 1e-2);
  const auto expected = Gradients({x, weight}, upstream, [](const std::vector<at::Tensor>& leaves) {
    return PlainRmsNorm(leaves[0], leaves[1], 1e-2);
  });
  const NormGradient plain = RmsNormBackward(upstream, x, normed.rstd, weight, {});
  ExpectClose(plain.x, expected[0]);
  ExpectClose(plain.weight, expected[1]);
  const NormGradient joined = RmsNormBackward(upstream, x, normed.rstd, weight, residual);
  ExpectClose(joined.x, expected[0] + residual.to(at::kDouble));
}

TEST_P(KernelsTest, LayerNormBackward_EqualsAutograd) {
  const at::Tensor x = Random({kRows, kFeatures}), weight = Random({kFeatures}),
                   bias = Random({kFeatures});
  const at::Tensor upstream = Random({kRows, kFeatures}), residual = Random({kRows, kFeatures});
  const auto expected =
      Gradients({x, weight, bias}, upstream, [](const std::vector<at::Tensor>& leaves) {
        return at::layer_norm(leaves[0], {kFeatures}, leaves[1], leaves[2], 1e-5);
      });
  const LayerNormed normed = LayerNorm(x, weight, bias, 1e-5);
  const NormGradient gradient = LayerNormBackward(upstream, x, normed, weight, bias, residual);
  ExpectClose(gradient.x, expected[0] + residual.to(at::kDouble));
  ExpectClose(gradient.weight, expected[1]);
  ExpectClose(gradient.bias, expected[2]);
}

TEST_P(KernelsTest, AddLayerNorm_AddsInPlaceThenNorms) {
  const at::Tensor residual = Random({kRows, kFeatures}), branch = Random({kRows, kFeatures});
  const at::Tensor weight = Random({kFeatures}), bias = Random({kFeatures});
  const at::Tensor own = Random({kFeatures}), sum = branch + own + residual, ended = branch.clone();
  const LayerNormed normed = AddLayerNorm(residual, branch, own, weight, bias, 1e-5);
  ExpectClose(branch, sum);
  ExpectClose(normed.y, LayerNorm(sum, weight, bias, 1e-5).y);
  AddBiasAndResidual(ended, own, residual);
  ExpectClose(ended, sum);
}

TEST_P(KernelsTest, AddColumnSums_OfRowsAndOfMatrices) {
  const at::Tensor rows = Random({kRows, 3 * kFeatures}), matrices = Random({4, 6, kFeatures});
  const at::Tensor sum = at::ones({kFeatures}, SumType(GetParam().type));
  AddColumnSums(sum, rows.narrow(1, kFeatures, kFeatures));
  ExpectClose(sum, rows.narrow(1, kFeatures, kFeatures).to(at::kDouble).sum(0) + 1);
  const at::Tensor matrix = at::ones({6, kFeatures}, SumType(GetParam().type));
  AddColumnSums(matrix, matrices);
  ExpectClose(matrix, matrices.to(at::kDouble).sum(0) + 1);
}

TEST_P(KernelsTest, Rotate_TurnsTheFirstHeadsAndBack) {
  const int64_t batch = 2, length = 3, heads = 3, half = 5;
  const at::ScalarType sums = SumType(GetParam().type);
  const at::Tensor angles = at::randn({length + 2, half}, at::kDouble);
  const at::Tensor cos = angles.cos().to(sums), sin = angles.sin().to(sums);
  const at::Tensor x = Random({batch, length, heads, 2 * half});
  const at::Tensor turned = x.clone();
  Rotate(turned, 2, cos, sin, /*inverse=*/false);
  const at::Tensor wide = x.to(at::kDouble).narrow(2, 0, 2);
  const at::Tensor a = wide.narrow(3, 0, half), b = wide.narrow(3, half, half);
  const at::Tensor c = angles.narrow(0, 0, length).cos().unsqueeze(1),
                   s = angles.narrow(0, 0, length).sin().unsqueeze(1);
  ExpectClose(turned.narrow(2, 0, 2), at::cat({a * c - b * s, b * c + a * s}, 3));
  EXPECT_TRUE(at::equal(turned.select(2, 2), x.select(2, 2)));
  Rotate(turned, 2, cos, sin, /*inverse=*/true);
  ExpectClose(turned, x);
}

TEST_P(KernelsTest, SwiGlu_EqualsDefinitionAndAutograd) {
  const int64_t block = 7, blocks = 3;
  const at::Tensor gate_up = Random({kRows, 2 * block * blocks}).mul_(3);
  const at::Tensor upstream = Random({kRows, block * blocks});
  const auto definition = [&](const std::vector<at::Tensor>& leaves) {
    const at::Tensor pairs = leaves[0].view({kRows, blocks, 2, block});
    return (at::silu(pairs.select(2, 0)) * pairs.select(2, 1)).reshape({kRows, blocks * block});
  };
  ExpectClose(SwiGlu(gate_up, block), definition({gate_up.to(at::kDouble)}));
  SwiGluAgain again;
  ExpectClose(SwiGluBackward(upstream, gate_up, block, nullptr, &again),
              Gradients({gate_up}, upstream, definition)[0]);
  EXPECT_TRUE(at::equal(again.y, SwiGlu(gate_up, block)));
}

TEST_P(KernelsTest, QuickGelu_EqualsDefinitionAndAutograd) {
  const at::Tensor x = Random({kRows, kFeatures}).mul_(3), upstream = Random({kRows, kFeatures});
  const auto definition = [](const std::vector<at::Tensor>& leaves) {
    return leaves[0] * at::sigmoid(leaves[0] * 1.702);
  };
  ExpectClose(Gelu(GeluKind::kQuick, x), definition({x.to(at::kDouble)}));
  ExpectClose(GeluBackward(GeluKind::kQuick, upstream, x).x,
              Gradients({x}, upstream, definition)[0]);
}

TEST_P(KernelsTest, Gelu_EqualsAutograd) {
  const at::Tensor x = Random({kRows, kFeatures}).mul_(3), upstream = Random({kRows, kFeatures});
  for (const auto& [kind, name] : {std::pair{GeluKind::kErf, "none"}, {GeluKind::kTanh, "tanh"}}) {
    const auto definition = [name = name](const std::vector<at::Tensor>& leaves) {
      return at::gelu(leaves[0], name);
    };
    ExpectClose(Gelu(kind, x), definition({x.to(at::kDouble)}));
    ExpectClose(GeluBackward(kind, upstream, x).x, Gradients({x}, upstream, definition)[0]);
  }
}

TEST_P(KernelsTest, Activations_OfLargeInputs_StayFinite) {
  const at::Tensor x = at::tensor({-1e4, -90.0, -88.0, 88.0, 90.0, 1e4}, at::kDouble)
                           .to(GetParam().type)
                           .unsqueeze(0);
  ExpectClose(Gelu(GeluKind::kQuick, x), x.to(at::kDouble).clamp_min(0));
  const at::Tensor gate_up = at::cat({x, at::ones_like(x)}, 1);
  ExpectClose(SwiGlu(gate_up, 6), x.to(at::kDouble).clamp_min(0));
  EXPECT_TRUE(at::isfinite(SwiGluBackward(at::ones_like(x), gate_up, 6)).all().item<bool>());
}

TEST_P(KernelsTest, ScatterRows_AtOnePosition_AddUp) {
  const at::Tensor rows = Random({4, kFeatures}), values = Random({3, kFeatures});
  const at::Tensor positions = at::tensor({2, 0, 2}, at::kLong), before = rows.clone();
  // Not contiguous, as what comes out of a narrowed gradient may be.
  ScatterRows(rows, positions, values.t().contiguous().t());
  ExpectClose(rows[0], before[0] + values[1]);
  ExpectClose(rows[2], before[2] + values[0] + values[2]);
  EXPECT_TRUE(at::equal(rows[3], before[3]));
}

TEST_P(KernelsTest, Rows_TakenAndAdded_LeaveOutWhatIsNotKept) {
  const at::Tensor table = Random({4, kFeatures});
  const at::Tensor index = at::tensor({3, 0, 3, 1}, at::kLong),
                   keep = at::tensor({1, 1, 1, 0}, at::kLong).to(at::kBool);
  ExpectClose(TakeRows(table, index, {}), table.index_select(0, index));
  const at::Tensor taken = TakeRows(table, index, keep);
  ExpectClose(taken[0], table[3]);
  EXPECT_EQ(taken[3].abs().max().item<double>(), 0);
  const at::Tensor sum = at::zeros({4, kFeatures}, SumType(GetParam().type));
  AddRows(sum, index, keep, taken);
  ExpectClose(
      sum, at::stack({table[0], at::zeros_like(table[0]), at::zeros_like(table[0]), table[3] * 2}));
}

// A vocabulary whole, and cut in two; rows of items alone, two at one place, and none that are
// here; padding.
TEST_P(KernelsTest, EmbedRows_WritesTokensAndItemsWhereTheyStand) {
  constexpr int64_t kVocabulary = 10, kCut = 4;
  const at::Tensor table = Random({kVocabulary, kFeatures}), items = Random({4, kFeatures});
  const at::Tensor positions = at::tensor({5, 1, 5, 0}, at::kLong);
  const TokenRows rows = MakeTokenRows(at::tensor({0, 0, 9, 3, 4, 0, -1}, at::kLong), positions);
  const at::Tensor whole = EmbedRows(table, 0, rows, items, positions);
  for (const auto& [row, token] : {std::pair{2, 9}, {3, 3}, {4, 4}, {6, 0}})
    EXPECT_TRUE(at::equal(whole[row], table[token])) << row;
  EXPECT_TRUE(at::equal(whole[0], items[3]));
  EXPECT_TRUE(at::equal(whole[1], items[1]));
  ExpectClose(whole[5], items[0].to(at::kDouble) + items[2].to(at::kDouble));

  const at::Tensor low = EmbedRows(table.narrow(0, 0, kCut), 0, rows, items, positions);
  const at::Tensor high =
      EmbedRows(table.narrow(0, kCut, kVocabulary - kCut), kCut, rows, {}, positions);
  EXPECT_TRUE(at::equal(low + high, whole));
  for (const int64_t row : {0, 1, 3, 5, 6})
    EXPECT_EQ(high[row].abs().max().item<double>(), 0) << row;

  const TokenRows text = MakeTokenRows(at::tensor({7, 7}, at::kLong));
  EXPECT_TRUE(at::equal(EmbedRows(table, 0, text, {}, {}), at::stack({table[7], table[7]})));
}

TEST_P(KernelsTest, AddTokenRows_AddsRowsOfTextThatAreHere) {
  constexpr int64_t kVocabulary = 10, kCut = 4;
  const at::Tensor values = Random({8, kFeatures}), wide = values.to(at::kDouble);
  const at::Tensor sum = at::ones({kVocabulary, kFeatures}, SumType(GetParam().type));
  const TokenRows rows = MakeTokenRows(at::tensor({3, 0, 9, 3, 4, 0, -1, 3}, at::kLong),
                                       at::tensor({5, 1}, at::kLong));
  at::Tensor expected = at::ones({kVocabulary, kFeatures}, at::kDouble);
  expected[3] += wide[0] + wide[3] + wide[7];
  expected[4] += wide[4];
  expected[9] += wide[2];
  const at::Tensor whole = sum.clone();
  AddTokenRows(whole, 0, rows.tokens, rows.order, values);
  ExpectClose(whole, expected);
  const at::Tensor cut = sum.clone();
  AddTokenRows(cut.narrow(0, 0, kCut), 0, rows.tokens, rows.order, values);
  AddTokenRows(cut.narrow(0, kCut, kVocabulary - kCut), kCut, rows.tokens, rows.order, values);
  EXPECT_TRUE(at::equal(cut, whole));
}

// The loss and the logits' gradient of a vocabulary cut in two, with labels in both parts.
TEST_P(KernelsTest, CrossEntropy_OverTwoRanks_EqualsAutograd) {
  const int64_t vocabulary = 45, cut = 26;
  const at::Tensor logits = Random({kRows, vocabulary}).mul_(4);
  const at::Tensor labels = at::tensor({3, 25, 26, 44, 0}, at::kLong);
  const at::Tensor weights =
      at::tensor({1.0, 1.0, 1.0, 1.0, 0.0}, at::kDouble).to(SumType(GetParam().type));
  at::Tensor expected;
  const at::Tensor gradient =
      Gradients({logits}, at::ones({}), [&](const std::vector<at::Tensor>& leaves) {
        expected = at::cross_entropy_loss(leaves[0], labels, {}, at::Reduction::None)
                       .dot(weights.to(at::kDouble));
        return expected;
      })[0];
  const at::Tensor low = logits.narrow(1, 0, cut).contiguous();
  const at::Tensor high = logits.narrow(1, cut, vocabulary - cut).contiguous();
  const at::Tensor gathered = at::stack(
      {SoftmaxStatistics(low, labels, weights, 0), SoftmaxStatistics(high, labels, weights, cut)});
  const at::Tensor alone = CrossEntropy(low, gathered, labels, weights, 0, /*gradient=*/false);
  EXPECT_TRUE(at::equal(low, logits.narrow(1, 0, cut))) << "without a gradient, logits stay";
  const at::Tensor loss = CrossEntropy(low, gathered, labels, weights, 0, /*gradient=*/true);
  EXPECT_TRUE(at::equal(loss, alone));
  EXPECT_TRUE(at::equal(loss, CrossEntropy(high, gathered, labels, weights, cut, true)));
  ExpectClose(loss, expected.detach());
  ExpectClose(at::cat({low, high}, 1), gradient);
  const at::Tensor whole = logits.clone();
  ExpectClose(WholeCrossEntropy(whole, labels, weights, /*gradient=*/true), expected.detach());
  ExpectClose(whole, gradient);
}

INSTANTIATE_TEST_SUITE_P(Types, KernelsTest,
                         testing::Values(Precision{at::kDouble, 1e-12}, Precision{at::kFloat, 2e-6},
                                         Precision{at::kBFloat16, 3e-2}));

}  // namespace
}  // namespace phalanx::model

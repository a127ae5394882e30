// Norms, of sums and alone, and their backward passes.
#include "tests/gpu/kernels/kernels_cuda_fixture.h"

namespace phalanx::model {
namespace {

class NormsCudaTest : public KernelsCudaTest {};

TEST_P(NormsCudaTest, Small_RmsNorm_AndBackward) {
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

TEST_P(NormsCudaTest, Small_LayerNorm_AndBackward) {
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

INSTANTIATE_TEST_SUITE_P(Types, NormsCudaTest, testing::Values(at::kBFloat16, at::kFloat),
                         TypeName);

}  // namespace
}  // namespace phalanx::model

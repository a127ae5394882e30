// Heads and activations, and the largest value that kernels find along the way.
#include <cmath>
#include <functional>
#include <tuple>

#include "tests/gpu/kernels/kernels_cuda_fixture.h"

namespace phalanx::model {
namespace {

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
      expect_largest(
          [&](at::Tensor* largest) {
            SwiGluAgain again{.largest = largest};
            SwiGluBackward(dy, gate_up, block, nullptr, &again);
            return again.y;
          },
          "SwiGLU again in its backward pass");
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
    SwiGluAgain again;
    const Tensors results = Twice([&] {
      return Tensors{SwiGlu(gate_up, block), SwiGluBackward(dy, gate_up, block),
                     SwiGluBackward(dy, gate_up, block, nullptr, &again)};
    });
    ExpectClose(results[0], (gate * sigmoid * up).view_as(dy), "y");
    EXPECT_TRUE(at::equal(again.y, results[0])) << "its bits";
    EXPECT_TRUE(at::equal(results[2], results[1])) << "whether it is asked for or not";
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
                         TypeName);

}  // namespace
}  // namespace phalanx::model

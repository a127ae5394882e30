// Rounding to FP8 as devices without it do, and the products of rounded operands.
#include "worker/model/fp8.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "worker/model/layer.h"

namespace phalanx::model {
namespace {

struct FormatTraits {
  Fp8Format format;
  int digits;       // of the fraction
  int lowest, top;  // exponents of normal numbers
};
constexpr FormatTraits kE4M3{Fp8Format::kE4M3, 3, -6, 8}, kE5M2{Fp8Format::kE5M2, 2, -14, 15};

// From the formats' definition: what is nearest among multiples of the last digit's worth, of two
// the even one.
double Nearest(const FormatTraits& traits, double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  const double digit = std::ldexp(1.0, std::max(exponent - 1, traits.lowest) - traits.digits);
  return std::nearbyint(value / digit) * digit;
}

at::Tensor RoundedRows(const at::Tensor& rows, const FormatTraits& traits) {
  const Operand operand = RoundToFp8(rows, traits.format, Forms::kBoth);
  EXPECT_TRUE(operand.rounded && operand.rows.defined());
  EXPECT_FALSE(operand.in_fp8());
  EXPECT_EQ(operand.rows.scalar_type(), rows.scalar_type());
  return operand.rows;
}

TEST(Fp8Test, Rounding_TakesTheNearestValueOfTheFormat) {
  at::manual_seed(5);
  for (const FormatTraits& traits : {kE4M3, kE5M2}) {
    // Over all of the format's exponents and some below; the largest has the scale 1.
    const at::Tensor magnitudes = at::exp2(
        at::rand({40, 50}, at::kDouble) * (traits.top - traits.lowest + 8) + traits.lowest - 8);
    const at::Tensor rows = magnitudes * at::randn({40, 50}, at::kDouble).sign();
    rows[0][0] = std::ldexp(1.75, traits.top);
    const at::Tensor values = rows.clamp(-rows[0][0].item<double>(), rows[0][0].item<double>());
    const at::Tensor rounded = RoundedRows(values, traits);
    for (int64_t i = 0; i < 40; ++i) {
      for (int64_t j = 0; j < 50; ++j) {
        const auto value = values[i][j].item<double>();
        ASSERT_EQ(rounded[i][j].item<double>(), Nearest(traits, static_cast<float>(value)))
            << value;
      }
    }
  }
}

TEST(Fp8Test, Scale_BringsTheLargestIntoTheUpperHalfOfTheRange) {
  for (const FormatTraits& traits : {kE4M3, kE5M2}) {
    const double largest_value = std::ldexp(1.75, traits.top);
    for (const double largest : {1.0, 1.5, 1.75, 1.7500001, 1.9999, 3e-30, 7e29}) {
      const at::Tensor rows = at::full({1, 4}, largest, at::kDouble);
      // A value that is the smallest under that scale, and one under half of it.
      int power = 0;
      while (std::ldexp(largest, power) > largest_value) --power;
      while (std::ldexp(largest, power + 1) <= largest_value) ++power;
      const double smallest = std::ldexp(1.0, traits.lowest - traits.digits - power);
      rows[0][1] = smallest;
      rows[0][2] = 0.49 * smallest;
      const at::Tensor rounded = RoundedRows(rows, traits);
      EXPECT_EQ(rounded[0][1].item<double>(), smallest) << largest;
      EXPECT_EQ(rounded[0][2].item<double>(), 0) << largest;
      EXPECT_NEAR(rounded[0][0].item<double>() / largest, 1, std::ldexp(1.0, -traits.digits - 1));
    }
  }
}

TEST(Fp8Test, WhatIsNotFinite_MakesAllOfItNaN) {
  for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    const at::Tensor rows = at::ones({3, 4}, at::kDouble);
    rows[1][2] = value;
    EXPECT_TRUE(RoundedRows(rows, kE4M3).isnan().all().item<bool>()) << value;
  }
  EXPECT_TRUE(at::equal(RoundedRows(at::zeros({2, 2}), kE5M2), at::zeros({2, 2})));
  EXPECT_EQ(RoundedRows(at::empty({0, 16}), kE5M2).size(0), 0);
}

// The reason for powers of two: shards and microbatches have scales of their own.
TEST(Fp8Test, Parts_AreRoundedLikeTheWhole) {
  at::manual_seed(6);
  const at::Tensor whole = at::randn({64, 32}, at::kDouble);
  whole.narrow(0, 0, 32).mul_(0.01);
  for (const FormatTraits& traits : {kE4M3, kE5M2}) {
    const at::Tensor rounded = RoundedRows(whole, traits);
    const auto largest = whole.abs().max().item<double>();
    // Normal under the whole's scale, so under those of its parts, too.
    const at::Tensor normal =
        whole.abs() >= largest * std::ldexp(1.0, traits.lowest - traits.top + 1);
    EXPECT_TRUE(normal.any().item<bool>());
    for (const int64_t dim : {0, 1}) {
      const int64_t half = whole.size(dim) / 2;
      for (const int64_t first : {int64_t{0}, half}) {
        const at::Tensor part = RoundedRows(whole.narrow(dim, first, half).contiguous(), traits);
        const at::Tensor of_whole = rounded.narrow(dim, first, half);
        const at::Tensor same =
            (part == of_whole).logical_or(normal.narrow(dim, first, half).logical_not());
        EXPECT_TRUE(same.all().item<bool>());
        const double rest = std::ldexp(largest, traits.lowest - traits.digits - traits.top);
        EXPECT_LE((part - of_whole).abs().max().item<double>(), rest);
      }
    }
  }
}

TEST(Fp8Test, Words_NameTheSumsOfEachProduct) {
  const Fp8Words cuda = DescribeFp8(/*on_cuda=*/true), cpu = DescribeFp8(/*on_cuda=*/false);
  ASSERT_EQ(cuda.products.size(), 3u);
  EXPECT_EQ(cuda.products[0].sums, "tensor cores, 14 bits");
  EXPECT_EQ(cuda.products[1].sums, "fp32 every 128 terms");
  EXPECT_EQ(cuda.products[2].sums, "fp32 every 128 terms");
  EXPECT_EQ(cuda.products[2].result, "added to fp32 inside the product");
  for (const Fp8Words::Product& product : cpu.products) EXPECT_EQ(product.sums, "compute type");
}

TEST(Fp8Test, Weight_IsRoundedOncePerVersion) {
  const at::Tensor weight = at::full({16, 16}, 1.06, at::kDouble);
  int64_t version = 0;
  Fp8Weight rounded(weight, /*backward=*/true, version);
  EXPECT_EQ(rounded.Rounded().rows[0][0].item<double>(), 1.0);
  weight.fill_(3.3);
  EXPECT_EQ(rounded.Rounded().rows[0][0].item<double>(), 1.0);
  ++version;
  EXPECT_EQ(rounded.Rounded().rows[0][0].item<double>(), 3.25);
}

// Weights lie as they are, or turned.
TEST(Fp8Test, ProductsOfALinear_TakeRoundedOperands) {
  at::manual_seed(7);
  const int64_t version = 0;
  for (const bool turned : {false, true}) {
    const auto matrix = [&] {
      return turned ? at::randn({32, 48}, at::kDouble).t() : at::randn({48, 32}, at::kDouble);
    };
    Parameter weight{matrix(), matrix()};
    weight.fp8 = std::make_shared<Fp8Weight>(weight.weight, /*backward=*/true, version);
    const at::Tensor x = at::randn({5, 32}, at::kDouble), dy = at::randn({5, 48}, at::kDouble);
    const at::Tensor rounded_x = RoundedRows(x, kE4M3), rounded_dy = RoundedRows(dy, kE5M2);
    const at::Tensor rounded_weight = RoundedRows(weight.weight.contiguous(), kE4M3);
    Operand input, gradient;
    EXPECT_TRUE(at::allclose(Linear(x, weight, &input), rounded_x.mm(rounded_weight.t())));
    EXPECT_TRUE(
        at::allclose(LinearInputGradient(dy, weight, &gradient), rounded_dy.mm(rounded_weight)));
    const at::Tensor sum = weight.gradient + rounded_dy.t().mm(rounded_x);
    WeightWork work;
    work.Matrix(weight, std::move(gradient), std::move(input));
    work.Run();
    EXPECT_TRUE(at::allclose(weight.gradient, sum));
    work.Matrix(weight, dy, x);  // rounded on the way
    work.Run();
    EXPECT_TRUE(at::allclose(weight.gradient, sum + rounded_dy.t().mm(rounded_x)));
  }
}

}  // namespace
}  // namespace phalanx::model

#include "worker/model/fp8.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/device/cuda_device.h"
#include "worker/model/fp8_cuda.h"

namespace phalanx::model {
namespace {

using device::kWithCuda;

// What cuda_fp8.h does, without its types.
at::Tensor RoundedValues(const at::Tensor& values, Fp8Format format) {
  if (values.numel() == 0) return values;
  const auto largest = values.abs().max().item<double>();
  if (largest == 0) return values;
  if (!std::isfinite(largest))
    return at::full_like(values, std::numeric_limits<double>::quiet_NaN());
  const bool e4m3 = format == Fp8Format::kE4M3;
  int exponent = 0;  // largest = fraction * 2^exponent, fraction in [0.5, 1)
  const double fraction = std::frexp(largest, &exponent);
  // The largest finite values are 1.75 * 2^8 and 1.75 * 2^15.
  const int power = std::min((e4m3 ? 9 : 16) - exponent - (fraction > 0.875 ? 1 : 0), 126);
  const at::ScalarType type = e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  return values.mul(std::ldexp(1.0, power))
      .to(type)
      .to(values.scalar_type())
      .mul_(std::ldexp(1.0, -power));
}

// Of products on CUDA.
constexpr const char* NameOf(Fp8Sums sums) {
  return sums == Fp8Sums::kFast ? "tensor cores, 14 bits" : "fp32 every 128 terms";
}
constexpr Fp8Sums kSumsIntoGradients = Fp8Sums::kPrecise;

}  // namespace

Operand RoundToFp8(const Operand& operand, Fp8Format format, Forms forms) {
  if constexpr (kWithCuda) {
    if (operand.rows.is_cuda()) return fused::RoundToFp8(operand, format, forms);
  }
  Operand rounded = RoundedValues(operand.rows, format);
  rounded.rounded = true;
  return rounded;
}

Operand Operand::Turned() const {
  Operand turned = *this;
  if (in_fp8()) {
    std::swap(turned.rows, turned.columns);
  } else {
    turned.rows = rows.t();
  }
  return turned;
}

const Operand& Fp8Weight::Rounded() {
  if (made_of_ == version_) return rounded_;
  made_of_ = version_;
  rounded_ = {};  // its memory is what the new one takes
  // As it is stored.
  const bool turned = !weight_.is_contiguous();
  const Forms forms = backward_ ? Forms::kBoth : turned ? Forms::kColumns : Forms::kRows;
  rounded_ = RoundToFp8(turned ? weight_.t() : weight_, Fp8Format::kE4M3, forms);
  if (turned) rounded_ = rounded_.Turned();
  return rounded_;
}

at::Tensor Fp8Product(const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& b,
                      const at::Tensor& b_scale, Fp8Sums sums) {
  at::Tensor product = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kBFloat16));
  if constexpr (kWithCuda) fused::MultiplyFp8(a, a_scale, b, b_scale, sums, /*add=*/false, product);
  return product;
}

void AddFp8Product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& a_scale,
                   const at::Tensor& b, const at::Tensor& b_scale) {
  if constexpr (kWithCuda)
    fused::MultiplyFp8(a, a_scale, b, b_scale, kSumsIntoGradients, /*add=*/true, sum);
}

Fp8Words DescribeFp8(bool on_cuda) {
  const auto sums = [&](Fp8Sums of) { return on_cuda ? NameOf(of) : "compute type"; };
  const std::string result = on_cuda ? "bf16" : "compute type";
  return {.recipe = "one scale an operand, the power of two of its largest magnitude",
          .products = {{"forward", "e4m3 x e4m3", sums(Fp8Sums::kFast), result},
                       {"input_gradient", "e5m2 x e4m3", sums(Fp8Sums::kPrecise), result},
                       {"weight_gradient", "e5m2 x e4m3", sums(kSumsIntoGradients),
                        on_cuda ? "added to fp32 inside the product" : "added to the gradient"}}};
}

absl::Status CheckFp8(const at::Device& device) {
  if constexpr (kWithCuda) {
    if (device.is_cuda()) return fused::CheckFp8(device);
  }
  return absl::OkStatus();
}

}  // namespace phalanx::model

// worker/model/fp8.h: what enters products of matrices, and rounding it to FP8.
//
// The products of a linear layer may take their operands in FP8 (`precision.linear: fp8`): inputs
// and weights as E4M3, which has 3 bits of fraction, gradients of outputs as E5M2, which has 2 and
// twice the exponents. Each operand has one scale, a power of two that follows from its largest
// magnitude and nothing else: no state, no message. Such a scale changes the exponents of values
// and not what they round to, so it matters for values below 2^-14 (E4M3) or 2^-29 (E5M2) of the
// largest alone, which lose bits or vanish. Hence parts of a matrix that are rounded apart (tensor
// shards, microbatches) are rounded like the whole but for that, and equal matrices (replicas,
// recomputation, what all tensor ranks have) to equal bits. docs/decisions/0032-fp8.md.
//
// On CUDA operands become FP8; elsewhere they keep their type and take the rounded values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace phalanx::model {

enum class Fp8Format : uint8_t { kE4M3, kE5M2 };

// What enters a product: rows in the compute type, as which it is made, or rounded.
struct Operand {
  Operand() = default;
  Operand(at::Tensor rows) : rows(std::move(rows)) {}  // NOLINT(google-explicit-constructor)

  at::Tensor rows;  // [n, features]
  // Of rows that are not rounded, where the kernel that made them found it (kernels.h): the largest
  // magnitude. It belongs to `rows` as they are, not to what is gathered or summed from them.
  at::Tensor largest;
  bool rounded = false;
  // In FP8 on CUDA, where a product reads each operand along its sum: `rows` for sums over the
  // features, `columns` [features, n rounded up to 16] for those over rows, 0 behind them. One of
  // them may be missing.
  at::Tensor columns;
  at::Tensor scale;  // fp32 scalar: what 1 stands for

  bool defined() const { return rows.defined() || columns.defined(); }
  bool in_fp8() const { return scale.defined(); }
  // The same with its columns as rows.
  Operand Turned() const;
};

enum class Forms : uint8_t { kRows, kColumns, kBoth };
// The rows of `operand`, which are not, rounded. On CUDA of bf16, `features` a multiple of 8; one
// more pass finds their largest magnitude unless it is known. What is not finite makes all of it
// NaN.
Operand RoundToFp8(const Operand& operand, Fp8Format format, Forms forms);

// A weight [out, in], rounded at its first use after a change. Not thread-safe.
class Fp8Weight {
 public:
  // Keeps the view `weight` and a reference to `version`, which tells changes apart. `backward`:
  // there are products with its columns, too.
  Fp8Weight(at::Tensor weight, bool backward, const int64_t& version)
      : weight_(std::move(weight)), backward_(backward), version_(version) {}

  const Operand& Rounded();

 private:
  const at::Tensor weight_;
  const bool backward_;
  const int64_t& version_;
  int64_t made_of_ = -1;  // version
  Operand rounded_;
};

// Sums of products: of forward passes the tensor cores' own, which have 14 bits; of gradients those
// moved into fp32 every 128 terms.
enum class Fp8Sums : uint8_t { kFast, kPrecise };
// y = x W^T of bf16, from rows of operands in FP8: [m, k], [n, k] -> [m, n].
at::Tensor Fp8Product(const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& b,
                      const at::Tensor& b_scale, Fp8Sums sums);
// sum += a b^T, in fp32 inside the product; `sum` [m, n] is contiguous.
void AddFp8Product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& a_scale,
                   const at::Tensor& b, const at::Tensor& b_scale);

// In words, for results.
struct Fp8Words {
  struct Product {
    std::string name;      // "forward", "input_gradient", "weight_gradient"
    std::string operands;  // "e5m2 x e4m3": of gradients that of the output first
    std::string sums;      // in which its terms are added up
    std::string result;
  };
  std::string recipe;  // how operands are scaled
  std::vector<Product> products;
};
// Of the products of a linear layer; not `on_cuda`: of rounded values in the compute type.
Fp8Words DescribeFp8(bool on_cuda);

// Errors: FailedPrecondition, with its name, for a device that has no FP8.
absl::Status CheckFp8(const at::Device& device);

}  // namespace phalanx::model

#include "worker/model/products_cuda.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/model/cuda_product.h"
#include "worker/model/products.h"

namespace phalanx::model::fused {
namespace {

using schedule::ProductKey;
using schedule::ProductType;

constexpr int64_t kAligned = 16;  // bytes

// How a matrix lies: as it is, or its transpose without gaps; nullopt: otherwise.
std::optional<bool> TurnOf(const at::Tensor& matrix) {
  if (matrix.is_contiguous()) return false;
  return matrix.t().is_contiguous() ? std::optional(true) : std::nullopt;
}

bool IsAligned(const at::Tensor& tensor, int64_t row) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAligned == 0 &&
         row * tensor.element_size() % kAligned == 0;
}

cuda::Product ProductOf(const ProductKey& key, const at::Tensor& d, const at::Tensor& a,
                        const at::Tensor& b, const at::Tensor& bias) {
  return {.key = key,
          .a = a.const_data_ptr(),
          .b = b.const_data_ptr(),
          .d = d.mutable_data_ptr(),
          .bias = key.bias ? bias.const_data_ptr() : nullptr};
}

bool Run(const ProductKey& key, const schedule::ProductAlgorithm& algorithm, const at::Tensor& d,
         const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const cuda::Product product = ProductOf(key, d, a, b, bias);
  cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  if (!cuda::Takes(handle, product, algorithm)) return false;
  at::Tensor workspace;
  if (algorithm.workspace_bytes > 0)
    workspace = at::empty({algorithm.workspace_bytes}, d.options().dtype(at::kByte));
  const int status = cuda::Multiply(handle, product, &algorithm,
                                    workspace.defined() ? workspace.mutable_data_ptr() : nullptr,
                                    c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(status == 0, "cuBLASLt answers a product of its table, ", schedule::ToString(key),
              ", with status ", status);
  return true;
}

bool IsFit(const at::Tensor& d, const at::Tensor& a, const at::Tensor& b) {
  return d.dim() == 2 && d.is_contiguous() && d.size(0) == a.size(0) && d.size(1) == b.size(1) &&
         IsAligned(d, d.size(1));
}

}  // namespace

std::optional<ProductKey> KeyOf(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                                at::ScalarType d_type, bool add) {
  const bool narrow = d_type == at::kBFloat16;
  if (a.dim() != 2 || b.dim() != 2 || a.scalar_type() != at::kBFloat16 ||
      b.scalar_type() != at::kBFloat16 || !(narrow || d_type == at::kFloat) ||
      a.size(1) != b.size(0) || a.numel() == 0 || b.numel() == 0)
    return std::nullopt;
  const std::optional<bool> a_turned = TurnOf(a), b_turned = TurnOf(b);
  if (!a_turned.has_value() || !b_turned.has_value()) return std::nullopt;
  if (!IsAligned(a, *a_turned ? a.size(0) : a.size(1)) ||
      !IsAligned(b, *b_turned ? b.size(0) : b.size(1)))
    return std::nullopt;
  if (bias.defined() && (bias.scalar_type() != at::kBFloat16 || bias.dim() != 1 ||
                         bias.size(0) != b.size(1) || !bias.is_contiguous() || !IsAligned(bias, 0)))
    return std::nullopt;
  return ProductKey{.d = narrow ? ProductType::kBf16 : ProductType::kFp32,
                    .a_turned = *a_turned,
                    .b_turned = *b_turned,
                    .add = add,
                    .bias = bias.defined(),
                    .m = a.size(0),
                    .n = b.size(1),
                    .k = a.size(1)};
}

bool HasAlgorithm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const std::optional<ProductKey> key = KeyOf(a, b, bias, a.scalar_type(), /*add=*/false);
  if (!key.has_value()) return false;
  const bool has = AlgorithmFor(*key) != nullptr;
  if (!has) NoteProduct(*key, /*by_table=*/false);
  return has;
}

bool MultiplyByTable(const at::Tensor& d, const at::Tensor& a, const at::Tensor& b,
                     const at::Tensor& bias, bool add) {
  const std::optional<ProductKey> key =
      IsFit(d, a, b) ? KeyOf(a, b, bias, d.scalar_type(), add) : std::nullopt;
  if (!key.has_value()) return false;
  const schedule::ProductAlgorithm* algorithm = AlgorithmFor(*key);
  const bool taken = algorithm != nullptr && Run(*key, *algorithm, d, a, b, bias);
  if (algorithm != nullptr && !taken) TellOfRefusal(*key);
  NoteProduct(*key, taken);
  return taken;
}

int64_t ProductLibrary() { return cuda::ProductLibrary(); }

}  // namespace phalanx::model::fused

#include "worker/model/fp8_cuda.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "worker/model/cuda_fp8.h"
#include "worker/model/cuda_product.h"
#include "worker/model/products.h"

namespace phalanx::model::fused {
namespace {

// Of rows that a product sums over.
constexpr int64_t kRowsMultiple = 16;

// Scalars that are cleared together, 16 KB; a step of a model of 40 layers takes some 800.
constexpr int64_t kClearedTogether = 1024;

schedule::ProductType ProductTypeOf(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat8_e4m3fn ? schedule::ProductType::kE4M3
                                                    : schedule::ProductType::kE5M2;
}

}  // namespace

at::Tensor ClearedScalar() {
  struct Cleared {
    at::Tensor scalars;
    std::optional<c10::cuda::CUDAStream> stream;  // on which they are cleared and used
    int64_t taken = kClearedTogether;
  };
  thread_local Cleared cleared;
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  if (cleared.taken == kClearedTogether || cleared.stream != stream) {
    constexpr int64_t kApart = 4;  // cuBLASLt's scales stand at 16 bytes
    // Those in use keep the memory of the old ones.
    cleared.scalars =
        at::zeros({kClearedTogether, kApart}, at::TensorOptions(stream.device()).dtype(at::kFloat))
            .select(1, 0);
    cleared.stream = stream;
    cleared.taken = 0;
  }
  return cleared.scalars[cleared.taken++];
}

Operand RoundToFp8(const Operand& operand, Fp8Format format, Forms forms) {
  const at::Tensor& rows = operand.rows;
  TORCH_CHECK(!operand.rounded, "an operand is rounded once");
  TORCH_CHECK(rows.scalar_type() == at::kBFloat16, "only bf16 is rounded to FP8");
  TORCH_CHECK(rows.size(1) % 8 == 0, "FP8 needs features that 8 divides, not ", rows.size(1));
  const cuda::Stream stream = c10::cuda::getCurrentCUDAStream().stream();
  const at::Tensor x = rows.contiguous();
  const bool e4m3 = format == Fp8Format::kE4M3;
  const at::TensorOptions type = x.options().dtype(e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2);
  cuda::CastArguments arguments{};
  arguments.rows = x.size(0);
  arguments.features = x.size(1);
  arguments.padded = (arguments.rows + kRowsMultiple - 1) / kRowsMultiple * kRowsMultiple;
  Operand rounded;
  rounded.rounded = true;
  if (forms != Forms::kColumns) {
    rounded.rows = at::empty({arguments.rows, arguments.features}, type);
    arguments.straight = rounded.rows.mutable_data_ptr();
  }
  if (forms != Forms::kRows) {
    rounded.columns = at::empty({arguments.features, arguments.padded}, type);
    arguments.transposed = rounded.columns.mutable_data_ptr();
  }
  rounded.scale = ClearedScalar();
  arguments.scale = rounded.scale.mutable_data_ptr<float>();
  arguments.x = x.const_data_ptr();
  at::Tensor largest = operand.largest;
  if (!largest.defined()) {
    largest = ClearedScalar();
    cuda::Largest(x.numel(), arguments.x, static_cast<uint32_t*>(largest.mutable_data_ptr()),
                  stream);
  }
  arguments.largest = static_cast<const uint32_t*>(largest.const_data_ptr());
  cuda::Cast(e4m3 ? cuda::Fp8::kE4M3 : cuda::Fp8::kE5M2, arguments, stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return rounded;
}

void MultiplyFp8(const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& b,
                 const at::Tensor& b_scale, Fp8Sums sums, bool add, const at::Tensor& d) {
  TORCH_CHECK(a.is_contiguous() && b.is_contiguous() && d.is_contiguous() &&
                  a.size(1) == b.size(1) && d.size(0) == a.size(0) && d.size(1) == b.size(0),
              "operands of a product in FP8 do not fit: ", a.sizes(), " ", b.sizes(), " ",
              d.sizes());
  const cuda::Product product{
      .key = {.a = ProductTypeOf(a),
              .b = ProductTypeOf(b),
              .d = d.scalar_type() == at::kFloat ? schedule::ProductType::kFp32
                                                 : schedule::ProductType::kBf16,
              .b_turned = true,
              .add = add,
              .fast = sums == Fp8Sums::kFast,
              .m = a.size(0),
              .n = b.size(0),
              .k = a.size(1)},
      .a = a.const_data_ptr(),
      .b = b.const_data_ptr(),
      .d = d.mutable_data_ptr(),
      .a_scale = a_scale.const_data_ptr<float>(),
      .b_scale = b_scale.const_data_ptr<float>(),
      // Gradients of weights, and they alone, are sums over rows, and fp32.
      .rows = d.scalar_type() == at::kFloat ? &schedule::ProductKey::k : &schedule::ProductKey::m};
  cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const schedule::ProductAlgorithm* algorithm = AlgorithmFor(product.key);
  if (algorithm != nullptr && !cuda::Takes(handle, product, *algorithm)) {
    TellOfRefusal(product.key);
    algorithm = nullptr;
  }
  if (product.key.m > 0) NoteProduct(product.key, algorithm != nullptr);
  const int64_t bytes =
      algorithm == nullptr ? schedule::kProductWorkspaceBytes : algorithm->workspace_bytes;
  const at::Tensor workspace = at::empty({bytes}, d.options().dtype(at::kByte));
  const int status = cuda::Multiply(handle, product, algorithm, workspace.mutable_data_ptr(),
                                    c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(status == 0, "cuBLASLt answers an FP8 product, ", schedule::ToString(product.key),
              ", with status ", status);
}

absl::Status CheckFp8(const at::Device& device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device.index());
  if (properties.major >= 9) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "precision.linear is fp8; device ", static_cast<int>(device.index()), ", ", properties.name,
      ", has compute capability ", properties.major, ".", properties.minor, " and 9.0 is needed"));
}

}  // namespace phalanx::model::fused

#include "worker/model/fp8_product.h"

#include <cublasLt.h>

#include <map>
#include <tuple>

namespace phalanx::model::cuda {
namespace {

// What a product is but for its operands' places: described once a thread, with its algorithm.
struct Described {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm;
};

cudaDataType_t TypeOf(Fp8 format) { return format == Fp8::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

#define RETURN_IF_NOT_ZERO(call) \
  if (const cublasStatus_t status = (call); status != CUBLAS_STATUS_SUCCESS) return status

template <typename Value>
cublasStatus_t Set(Described& described, cublasLtMatmulDescAttributes_t attribute,
                   const Value& value) {
  return cublasLtMatmulDescSetAttribute(described.product, attribute, &value, sizeof(value));
}

// The library's matrices are column-major: it computes D^T = B A^T, of k x n and k x m ones.
cublasStatus_t Describe(cublasLtHandle_t handle, const Fp8Product& of, Described& described) {
  RETURN_IF_NOT_ZERO(cublasLtMatmulDescCreate(&described.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N));
  const int8_t fast = of.fast ? 1 : 0;
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of.b.scale));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of.a.scale));
  const auto columns = [](int64_t count) { return static_cast<uint64_t>(count); };
  RETURN_IF_NOT_ZERO(cublasLtMatrixLayoutCreate(&described.first, TypeOf(of.b.format),
                                                columns(of.k), columns(of.n), of.k));
  RETURN_IF_NOT_ZERO(cublasLtMatrixLayoutCreate(&described.second, TypeOf(of.a.format),
                                                columns(of.k), columns(of.m), of.k));
  RETURN_IF_NOT_ZERO(cublasLtMatrixLayoutCreate(
      &described.result, of.wide ? CUDA_R_32F : CUDA_R_16BF, columns(of.n), columns(of.m), of.n));
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_NOT_ZERO(cublasLtMatmulPreferenceCreate(&preference));
  const auto bytes = static_cast<uint64_t>(kFp8WorkspaceBytes);
  cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulAlgoGetHeuristic(handle, described.product, described.first,
                                            described.second, described.result, described.result,
                                            preference, 1, &found, &count);
  }
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_SUCCESS && count == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
  described.algorithm = found.algo;
  return status;
}

}  // namespace

int Multiply(cublasLtContext* handle, const Fp8Product& product, void* workspace, Stream stream) {
  if (product.m == 0 || product.n == 0 || product.k == 0) return CUBLAS_STATUS_SUCCESS;
  using Key = std::tuple<cublasLtContext*, int64_t, int64_t, int64_t, Fp8, Fp8, bool, bool, bool>;
  // As many as there are shapes of microbatches, of which there are few.
  thread_local std::map<Key, Described> known;
  const Key key{handle,           product.m,    product.n,   product.k,   product.a.format,
                product.b.format, product.wide, product.add, product.fast};
  const auto [entry, inserted] = known.try_emplace(key);
  Described& described = entry->second;
  if (inserted) {
    if (const cublasStatus_t status = Describe(handle, product, described);
        status != CUBLAS_STATUS_SUCCESS) {
      known.erase(entry);
      return status;
    }
  }
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b.scale));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a.scale));
  const float one = 1, old = product.add ? 1 : 0;
  return cublasLtMatmul(handle, described.product, &one, product.b.values, described.first,
                        product.a.values, described.second, &old, product.d, described.result,
                        product.d, described.result, &described.algorithm, workspace,
                        static_cast<size_t>(kFp8WorkspaceBytes), stream);
}

}  // namespace phalanx::model::cuda

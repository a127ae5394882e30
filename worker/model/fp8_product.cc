#include "worker/model/fp8_product.h"

#include <cublasLt.h>

#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "worker/model/prepared.h"

namespace phalanx::model::cuda {
namespace {

template <auto Destroy>
struct Destroyer {
  template <typename Handle>
  void operator()(Handle* handle) const {
    static_cast<void>(Destroy(handle));
  }
};
template <typename Handle, auto Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyer<Destroy>>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

// What a product is but for its operands' places: described once a thread, with its algorithm.
struct Described {
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Layout first, second, result;
  cublasLtMatmulAlgo_t algorithm{};
};

cudaDataType_t TypeOf(Fp8 format) { return format == Fp8::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

#define RETURN_IF_NOT_ZERO(call) \
  if (const cublasStatus_t status = (call); status != CUBLAS_STATUS_SUCCESS) return status

template <typename Value>
cublasStatus_t Set(Described& described, cublasLtMatmulDescAttributes_t attribute,
                   const Value& value) {
  return cublasLtMatmulDescSetAttribute(described.product.get(), attribute, &value, sizeof(value));
}

// A matrix of so many rows that lie one behind the other.
cublasStatus_t MakeLayout(cudaDataType_t type, int64_t rows, int64_t columns, Layout* layout) {
  cublasLtMatrixLayout_t made = nullptr;
  RETURN_IF_NOT_ZERO(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(columns),
                                                static_cast<uint64_t>(rows), columns));
  layout->reset(made);
  return CUBLAS_STATUS_SUCCESS;
}

// The library's matrices are column-major: it computes D^T = B A^T, of k x n and k x m ones.
cublasStatus_t Describe(cublasLtHandle_t handle, const Fp8Product& of, Described& described) {
  cublasLtMatmulDesc_t product = nullptr;
  RETURN_IF_NOT_ZERO(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  described.product.reset(product);
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N));
  const int8_t fast = of.fast ? 1 : 0;
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of.b.scale));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of.a.scale));
  RETURN_IF_NOT_ZERO(MakeLayout(TypeOf(of.b.format), of.n, of.k, &described.first));
  RETURN_IF_NOT_ZERO(MakeLayout(TypeOf(of.a.format), of.m, of.k, &described.second));
  RETURN_IF_NOT_ZERO(MakeLayout(of.wide ? CUDA_R_32F : CUDA_R_16BF, of.m, of.n, &described.result));
  cublasLtMatmulPreference_t made = nullptr;
  RETURN_IF_NOT_ZERO(cublasLtMatmulPreferenceCreate(&made));
  const Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(made);
  const auto bytes = static_cast<uint64_t>(kFp8WorkspaceBytes);
  RETURN_IF_NOT_ZERO(cublasLtMatmulPreferenceSetAttribute(
      preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  RETURN_IF_NOT_ZERO(cublasLtMatmulAlgoGetHeuristic(
      handle, described.product.get(), described.first.get(), described.second.get(),
      described.result.get(), described.result.get(), preference.get(), 1, &found, &count));
  if (count == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  described.algorithm = found.algo;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

int Multiply(cublasLtContext* handle, const Fp8Product& product, void* workspace, Stream stream) {
  if (product.m == 0 || product.n == 0 || product.k == 0) return CUBLAS_STATUS_SUCCESS;
  using Key = std::tuple<cublasLtContext*, int64_t, int64_t, int64_t, Fp8, Fp8, bool, bool, bool>;
  // By shape. What is described is read as a product is enqueued, and never later.
  thread_local std::map<Key, Described> known;
  const Key key{handle,           product.m,    product.n,   product.k,   product.a.format,
                product.b.format, product.wide, product.add, product.fast};
  auto entry = known.find(key);
  if (entry == known.end()) {
    Described made;
    RETURN_IF_NOT_ZERO(Describe(handle, product, made));
    CountPreparation(Preparation::kFp8Product);
    if (known.size() >= kFp8DescribedMax) known.clear();
    entry = known.emplace(key, std::move(made)).first;
  }
  Described& described = entry->second;
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b.scale));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a.scale));
  const float one = 1, old = product.add ? 1 : 0;
  return cublasLtMatmul(handle, described.product.get(), &one, product.b.values,
                        described.first.get(), product.a.values, described.second.get(), &old,
                        product.d, described.result.get(), product.d, described.result.get(),
                        &described.algorithm, workspace, static_cast<size_t>(kFp8WorkspaceBytes),
                        stream);
}

}  // namespace phalanx::model::cuda

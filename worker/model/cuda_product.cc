#include "worker/model/cuda_product.h"

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "worker/model/prepared.h"

namespace phalanx::model::cuda {
namespace {

using schedule::ProductAlgorithm;
using schedule::ProductKey;
using schedule::ProductType;

template <auto Destroy>
struct Destroyer {
  template <typename Handle>
  void operator()(Handle* handle) const {
    static_cast<void>(Destroy(handle));
  }
};
template <typename Handle, auto Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyer<Destroy>>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// What a product is but for its operands' places: described once a thread, with its algorithm.
struct Described {
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  cublasLtMatrixLayoutOpaque_t first{}, second{}, result{};
  cublasLtMatmulAlgo_t algorithm{};
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;  // of describing it
};

cudaDataType_t TypeOf(ProductType type) {
  switch (type) {
    case ProductType::kE4M3:
      return CUDA_R_8F_E4M3;
    case ProductType::kE5M2:
      return CUDA_R_8F_E5M2;
    case ProductType::kFp32:
      return CUDA_R_32F;
    case ProductType::kBf16:
      break;
  }
  return CUDA_R_16BF;
}

bool IsFp8(const ProductKey& key) { return key.a != ProductType::kBf16; }

#define RETURN_IF_NOT_ZERO(call) \
  if (const cublasStatus_t status = (call); status != CUBLAS_STATUS_SUCCESS) return status

template <typename Value>
cublasStatus_t Set(Described& described, cublasLtMatmulDescAttributes_t attribute,
                   const Value& value) {
  return cublasLtMatmulDescSetAttribute(described.product.get(), attribute, &value, sizeof(value));
}

// What changes from one product of a shape to the next.
cublasStatus_t SetPlaces(Described& described, const Product& of) {
  if (IsFp8(of.key)) {
    RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of.b_scale));
    RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of.a_scale));
  }
  if (of.key.bias) RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_BIAS_POINTER, of.bias));
  return CUBLAS_STATUS_SUCCESS;
}

// A matrix of so many rows that lie one behind the other.
cublasStatus_t SetLayout(ProductType type, int64_t rows, int64_t columns,
                         cublasLtMatrixLayoutOpaque_t& layout) {
  return cublasLtMatrixLayoutInit(&layout, TypeOf(type), static_cast<uint64_t>(columns),
                                  static_cast<uint64_t>(rows), columns);
}

// Allocates nothing.
cublasStatus_t SetLayouts(const ProductKey& key, Described& described) {
  const auto sides = [](bool turned, int64_t rows, int64_t columns) {
    return turned ? std::pair(columns, rows) : std::pair(rows, columns);
  };
  const auto [b_rows, b_columns] = sides(key.b_turned, key.k, key.n);
  const auto [a_rows, a_columns] = sides(key.a_turned, key.m, key.k);
  RETURN_IF_NOT_ZERO(SetLayout(key.b, b_rows, b_columns, described.first));
  RETURN_IF_NOT_ZERO(SetLayout(key.a, a_rows, a_columns, described.second));
  return SetLayout(key.d, key.m, key.n, described.result);
}

// The library's matrices are column-major, so that each of ours is its own transpose: it computes
// D^T = B^T A^T.
cublasStatus_t DescribeProduct(const Product& of, Described& described) {
  const ProductKey& key = of.key;
  cublasLtMatmulDesc_t product = nullptr;
  RETURN_IF_NOT_ZERO(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  described.product.reset(product);
  const auto turn = [](bool turned) { return turned ? CUBLAS_OP_T : CUBLAS_OP_N; };
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_TRANSA, turn(key.b_turned)));
  RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_TRANSB, turn(key.a_turned)));
  if (IsFp8(key)) {
    const int8_t fast = key.fast ? 1 : 0;
    RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
  }
  if (key.bias)
    RETURN_IF_NOT_ZERO(Set(described, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
  RETURN_IF_NOT_ZERO(SetPlaces(described, of));
  return SetLayouts(key, described);
}

template <typename Value>
cublasStatus_t Prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
                      Value value) {
  return cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value));
}

// `ordered`: of algorithms that add up in one order, on operands at 16 bytes.
cublasStatus_t Propose(cublasLtHandle_t handle, Described& described, bool ordered,
                       std::vector<cublasLtMatmulHeuristicResult_t>& found) {
  cublasLtMatmulPreference_t made = nullptr;
  RETURN_IF_NOT_ZERO(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  RETURN_IF_NOT_ZERO(Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                            static_cast<uint64_t>(schedule::kProductWorkspaceBytes)));
  if (ordered) {
    constexpr uint32_t kAligned = 16;
    RETURN_IF_NOT_ZERO(Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                              static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
    for (const cublasLtMatmulPreferenceAttributes_t matrix :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      RETURN_IF_NOT_ZERO(Prefer(preference, matrix, kAligned));
  }
  int count = 0;
  RETURN_IF_NOT_ZERO(cublasLtMatmulAlgoGetHeuristic(
      handle, described.product.get(), &described.first, &described.second, &described.result,
      &described.result, preference.get(), static_cast<int>(found.size()), found.data(), &count));
  found.resize(static_cast<size_t>(count));
  return count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

// An attribute as the library has it, and as it is written in a table.
struct Attribute {
  cublasLtMatmulAlgoConfigAttributes_t attribute;
  int32_t ProductAlgorithm::*value;
  bool narrow;  // 16 bits instead of 32
};
constexpr Attribute kAttributes[] = {
    {CUBLASLT_ALGO_CONFIG_TILE_ID, &ProductAlgorithm::tile, false},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, &ProductAlgorithm::stages, false},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &ProductAlgorithm::split_k, false},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &ProductAlgorithm::reduction, false},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &ProductAlgorithm::swizzle, false},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &ProductAlgorithm::custom, false},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &ProductAlgorithm::inner_shape, true},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &ProductAlgorithm::cluster_shape, true}};

template <typename Value>
cublasStatus_t Get(const cublasLtMatmulAlgo_t& algorithm,
                   cublasLtMatmulAlgoConfigAttributes_t attribute, int32_t* value) {
  Value read = 0;
  size_t written = 0;
  RETURN_IF_NOT_ZERO(
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &read, sizeof(read), &written));
  *value = static_cast<int32_t>(read);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Get(const cublasLtMatmulAlgo_t& algorithm, const Attribute& of, int32_t* value) {
  return of.narrow ? Get<uint16_t>(algorithm, of.attribute, value)
                   : Get<uint32_t>(algorithm, of.attribute, value);
}

cublasStatus_t Set(cublasLtMatmulAlgo_t& algorithm, const Attribute& of, int32_t value) {
  const auto wide = static_cast<uint32_t>(value);
  const auto narrow = static_cast<uint16_t>(value);
  return cublasLtMatmulAlgoConfigSetAttribute(
      &algorithm, of.attribute,
      of.narrow ? static_cast<const void*>(&narrow) : static_cast<const void*>(&wide),
      of.narrow ? sizeof(narrow) : sizeof(wide));
}

cublasStatus_t ToTable(const cublasLtMatmulHeuristicResult_t& found, ProductAlgorithm* algorithm) {
  RETURN_IF_NOT_ZERO(Get<int32_t>(found.algo, CUBLASLT_ALGO_CONFIG_ID, &algorithm->id));
  for (const Attribute& attribute : kAttributes)
    RETURN_IF_NOT_ZERO(Get(found.algo, attribute, &(algorithm->*attribute.value)));
  algorithm->workspace_bytes = static_cast<int64_t>(found.workspaceSize);
  return CUBLAS_STATUS_SUCCESS;
}

// As the library has it, for a product that is described. An attribute is set where it differs
// from what the algorithm begins with.
cublasStatus_t FromTable(cublasLtHandle_t handle, const ProductKey& key,
                         const ProductAlgorithm& algorithm, Described& described) {
  const cudaDataType_t result = TypeOf(key.d);
  RETURN_IF_NOT_ZERO(cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, TypeOf(key.b),
                                            TypeOf(key.a), result, result, algorithm.id,
                                            &described.algorithm));
  for (const Attribute& attribute : kAttributes) {
    int32_t begins_with = 0;
    RETURN_IF_NOT_ZERO(Get(described.algorithm, attribute, &begins_with));
    if (begins_with == algorithm.*attribute.value) continue;
    RETURN_IF_NOT_ZERO(Set(described.algorithm, attribute, algorithm.*attribute.value));
  }
  cublasLtMatmulHeuristicResult_t checked{};
  RETURN_IF_NOT_ZERO(cublasLtMatmulAlgoCheck(handle, described.product.get(), &described.first,
                                             &described.second, &described.result,
                                             &described.result, &described.algorithm, &checked));
  RETURN_IF_NOT_ZERO(checked.state);
  return static_cast<int64_t>(checked.workspaceSize) <= algorithm.workspace_bytes
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t Describe(cublasLtHandle_t handle, const Product& of,
                        const ProductAlgorithm* algorithm, Described& described) {
  RETURN_IF_NOT_ZERO(DescribeProduct(of, described));
  if (algorithm != nullptr) return FromTable(handle, of.key, *algorithm, described);
  std::vector<cublasLtMatmulHeuristicResult_t> found(1);
  RETURN_IF_NOT_ZERO(Propose(handle, described, /*ordered=*/false, found));
  described.algorithm = found[0].algo;
  return CUBLAS_STATUS_SUCCESS;
}

// By shape and algorithm. What is described is read as a product is enqueued, and never later.
Described& DescribedOf(cublasLtHandle_t handle, const Product& product,
                       const ProductAlgorithm* algorithm) {
  using Key = std::tuple<cublasLtHandle_t, ProductKey, std::optional<ProductAlgorithm>>;
  thread_local std::map<Key, Described> known;
  const Key key{handle, product.key,
                algorithm == nullptr ? std::nullopt : std::optional(*algorithm)};
  const auto entry = known.find(key);
  if (entry != known.end()) return entry->second;
  Described made;
  made.status = Describe(handle, product, algorithm, made);
  CountPreparation(Preparation::kFp8Product);
  if (known.size() >= kDescribedMax) known.clear();
  return known.emplace(key, std::move(made)).first->second;
}

int Enqueue(cublasLtHandle_t handle, const Product& product, int64_t workspace_bytes,
            void* workspace, Stream stream, Described& described) {
  RETURN_IF_NOT_ZERO(described.status);
  // Others of its shape may have had other rows.
  RETURN_IF_NOT_ZERO(SetLayouts(product.key, described));
  RETURN_IF_NOT_ZERO(SetPlaces(described, product));
  const float one = 1, old = product.key.add ? 1 : 0;
  return cublasLtMatmul(handle, described.product.get(), &one, product.b, &described.first,
                        product.a, &described.second, &old, product.d, &described.result, product.d,
                        &described.result, &described.algorithm, workspace,
                        static_cast<size_t>(workspace_bytes), stream);
}

}  // namespace

int64_t ShapeRows(int64_t rows) {
  constexpr int64_t kLeast = 16;
  const auto wide = static_cast<uint64_t>(std::max(rows, kLeast));
  const auto step = std::max<int64_t>(kLeast, static_cast<int64_t>(std::bit_floor(wide - 1) / 4));
  return (static_cast<int64_t>(wide) + step - 1) / step * step;
}

int Multiply(cublasLtContext* handle, const Product& product, const ProductAlgorithm* algorithm,
             void* workspace, Stream stream) {
  const ProductKey& key = product.key;
  if (key.m == 0 || key.n == 0 || key.k == 0) return CUBLAS_STATUS_SUCCESS;
  const int64_t bytes =
      algorithm == nullptr ? schedule::kProductWorkspaceBytes : algorithm->workspace_bytes;
  if (algorithm == nullptr && product.rows != nullptr) {
    Product shape = product;
    shape.key.*product.rows = ShapeRows(key.*product.rows);
    // An algorithm may be for the rows of its shape alone.
    const int status =
        Enqueue(handle, product, bytes, workspace, stream, DescribedOf(handle, shape, nullptr));
    if (status == CUBLAS_STATUS_SUCCESS) return status;
  }
  return Enqueue(handle, product, bytes, workspace, stream,
                 DescribedOf(handle, product, algorithm));
}

bool Takes(cublasLtContext* handle, const Product& product, const ProductAlgorithm& algorithm) {
  return DescribedOf(handle, product, &algorithm).status == CUBLAS_STATUS_SUCCESS;
}

std::vector<ProductAlgorithm> Candidates(cublasLtContext* handle, const Product& product,
                                         int most) {
  Described described;
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  if (DescribeProduct(product, described) != CUBLAS_STATUS_SUCCESS ||
      Propose(handle, described, /*ordered=*/true, found) != CUBLAS_STATUS_SUCCESS)
    return {};
  std::vector<ProductAlgorithm> candidates;
  for (const cublasLtMatmulHeuristicResult_t& one : found) {
    ProductAlgorithm algorithm;
    if (one.state == CUBLAS_STATUS_SUCCESS && ToTable(one, &algorithm) == CUBLAS_STATUS_SUCCESS)
      candidates.push_back(algorithm);
  }
  return candidates;
}

int64_t ProductLibrary() { return static_cast<int64_t>(cublasLtGetVersion()); }

}  // namespace phalanx::model::cuda

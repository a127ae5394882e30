// core/schedule/product_table.h: the algorithms by which cuBLASLt computes products of matrices, as
// data.
//
// A table is of one kind of device and one version of the library. It names an algorithm for each
// shape of which one was measured that costs less than what the library, or LibTorch, takes by
// itself; all other products are computed as they are without a table. Tables lie in
// core/schedule/products, one JSON file each, and are compiled in; `phalanx-bench products` writes
// them. A job takes the one that all of its nodes have (docs/decisions/0069-algorithms-of-products-
// are-data.md): its reference is in the layout, and so in the plan's digest.
//
// Pure. Plain values; safe to read from any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace phalanx::schedule {

enum class ProductType : uint8_t { kBf16, kE4M3, kE5M2, kFp32 };
absl::Span<const absl::string_view> ProductTypeNames();
// D = A B, or D += A B, of row-major matrices without gaps: A [m, k], B [k, n], D [m, n].
struct ProductKey {
  ProductType a = ProductType::kBf16, b = ProductType::kBf16;  // operands, bf16 or FP8
  ProductType d = ProductType::kBf16;                          // bf16 or fp32
  bool a_turned = false, b_turned = false;                     // stored as [k, m], as [n, k]
  bool add = false;                                            // to what D has; else it is written
  bool fast = false;  // FP8: sums as the tensor cores have them, else moved into fp32 on the way
  bool bias = false;  // one [n] is added to each row
  int64_t m = 0, n = 0, k = 0;
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};
// Floating-point operations.
double FlopsOf(const ProductKey& key);
// "e4m3 x e4m3^T -> bf16, 16384 x 6144 of 4096, fast": for people.
std::string ToString(const ProductKey& key);

// cuBLASLt's attributes of an algorithm (cublasLtMatmulAlgoConfigAttributes_t), as it numbers them.
struct ProductAlgorithm {
  int32_t id = 0, tile = 0, stages = 0, split_k = 1, reduction = 0, swizzle = 0, custom = 0;
  int32_t inner_shape = 0, cluster_shape = 0;
  int64_t workspace_bytes = 0;  // at most kProductWorkspaceBytes
  friend auto operator<=>(const ProductAlgorithm&, const ProductAlgorithm&) = default;
};
// What a product may take of the device beside its operands.
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

// Of one call among calls of the same without pause.
struct ProductCost {
  double seconds = 0, joules = 0;
  friend bool operator==(const ProductCost&, const ProductCost&) = default;
};
struct ProductEntry {
  ProductKey key;
  ProductAlgorithm algorithm;
  ProductCost cost;
  ProductCost before;  // of what the product takes without the entry
  friend bool operator==(const ProductEntry&, const ProductEntry&) = default;
};
struct ProductTable {
  std::string kind;     // of the device, as KindOfDevice: "h200"
  int64_t library = 0;  // cublasLtGetVersion()
  // On what it was measured.
  std::string device, driver, source;
  double power_limit_watts = 0;
  std::vector<ProductEntry> entries;  // ascending by key, each key once

  // nullptr: the product is computed as without a table.
  const ProductAlgorithm* Find(const ProductKey& key) const;
  friend bool operator==(const ProductTable&, const ProductTable&) = default;
};

inline constexpr int64_t kProductTableVersion = 1;
inline constexpr size_t kProductEntriesMax = 4096;
inline constexpr int64_t kProductSideMax = int64_t{1} << 31;

// Of a file's text. Errors: InvalidArgument with every violation at once, each with its field, the
// value and the rule.
absl::StatusOr<ProductTable> ReadProductTable(absl::string_view json);
// A file's text, from which ReadProductTable makes the same table; entries may come in any order.
std::string WriteProductTable(const ProductTable& table);
// "h200-cublaslt-130100@" and the digest of what WriteProductTable makes of it.
std::string ReferenceOf(const ProductTable& table);
// "h200-cublaslt-130100": of its file, too.
std::string TableNameOf(const ProductTable& table);

using SharedProductTable = std::shared_ptr<const ProductTable>;
// Of `texts`, the first of that kind and library, or of that reference; nullptr: there is none.
// Texts that are no tables are passed over.
SharedProductTable FindProductTable(absl::Span<const absl::string_view> texts,
                                    absl::string_view kind, int64_t library);
SharedProductTable FindProductTable(absl::Span<const absl::string_view> texts,
                                    absl::string_view reference);
// Whether some of them is of that kind, whatever its library.
bool HasProductTable(absl::Span<const absl::string_view> texts, absl::string_view kind);
// The texts of core/schedule/products, in the order of their names.
absl::Span<const absl::string_view> BuiltInProductTables();

// Which of `candidates` an entry is to name: nullopt where none costs less than `before` by
// kProductGain. On a board that `limit_watts` holds back a step takes its joules divided by that,
// else its seconds; so a product costs the larger of the two. Of those within kProductSame of the
// least cost it is the one with the fewest joules, then the first. `limit_watts` 0: no limit.
inline constexpr double kProductGain = 0.01, kProductSame = 0.003;
std::optional<size_t> ChooseProduct(const ProductCost& before,
                                    absl::Span<const ProductCost> candidates, double limit_watts);
double ProductCostOf(const ProductCost& cost, double limit_watts);

}  // namespace phalanx::schedule

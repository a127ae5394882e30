#include "core/schedule/product_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/job/json.h"
#include "core/job/scalar.h"
#include "core/schedule/field_reader.h"

namespace phalanx::schedule {
namespace {

using job::Tree;
using ProductFields = FieldReader::Fields;

constexpr size_t kNodesMax = 40 * kProductEntriesMax;
constexpr int64_t kAttributeMax = 65'535, kLibraryMax = 100'000'000;
// What a reference and a file's name are made of.
constexpr size_t kKindBytesMax = 32;

// In the order of the types.
constexpr absl::string_view kTypes[] = {"bf16", "e4m3", "e5m2", "fp32"};
constexpr size_t kFp32 = 3;

absl::string_view NameOfType(ProductType type) { return kTypes[static_cast<size_t>(type)]; }

bool IsFp8(ProductType type) { return type == ProductType::kE4M3 || type == ProductType::kE5M2; }

ProductKey ReadKey(ProductFields& fields) {
  const absl::Span<const absl::string_view> types = kTypes;
  ProductKey key;
  key.a = static_cast<ProductType>(fields.Choice("a", types.first(kFp32)));
  key.b = static_cast<ProductType>(fields.Choice("b", types.first(kFp32)));
  constexpr absl::string_view kResults[] = {"bf16", "fp32"};
  key.d = fields.Choice("d", kResults) == 0 ? ProductType::kBf16 : ProductType::kFp32;
  key.a_turned = fields.Flag("a_turned");
  key.b_turned = fields.Flag("b_turned");
  key.add = fields.Flag("add");
  key.fast = fields.Flag("fast");
  key.bias = fields.Flag("bias");
  key.m = fields.Whole("m", 1, kProductSideMax);
  key.n = fields.Whole("n", 1, kProductSideMax);
  key.k = fields.Whole("k", 1, kProductSideMax);
  return key;
}

ProductAlgorithm ReadAlgorithm(ProductFields& fields) {
  const auto attribute = [&](const char* name, int64_t low = 0) {
    return static_cast<int32_t>(fields.Whole(name, low, kAttributeMax));
  };
  return {.id = attribute("id"),
          .tile = attribute("tile"),
          .stages = attribute("stages"),
          .split_k = attribute("split_k"),
          .reduction = attribute("reduction"),
          .swizzle = attribute("swizzle"),
          .custom = attribute("custom"),
          .inner_shape = attribute("inner_shape"),
          .cluster_shape = attribute("cluster_shape"),
          .workspace_bytes = fields.Whole("workspace_bytes", 0, kProductWorkspaceBytes)};
}

ProductCost ReadCost(ProductFields& fields, const std::string& name) {
  ProductCost cost;
  fields.Mapping(name, [&](ProductFields& at) {
    cost = {.seconds = at.Number("seconds"), .joules = at.Number("joules")};
  });
  return cost;
}

// "" of one that there may be.
std::string WhatIsWrongWith(const ProductKey& key) {
  if (IsFp8(key.a) != IsFp8(key.b)) return "both operands must be bf16, or both FP8";
  if (key.a == ProductType::kE5M2 && key.b == ProductType::kE5M2)
    return "one operand at most may be e5m2";
  if (key.fast && !IsFp8(key.a)) return "sums are fast in FP8 alone";
  if (IsFp8(key.a) && (key.a_turned || !key.b_turned))
    return "FP8 operands lie along their sum: b is turned, and a is not";
  return "";
}

void ReadDocument(ProductFields& fields, FieldReader& reader, ProductTable& table) {
  fields.Whole("version", kProductTableVersion, kProductTableVersion);
  table.kind = fields.Text("kind");
  const bool plain = std::all_of(table.kind.begin(), table.kind.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (!plain || table.kind.size() > kKindBytesMax)
    reader.Add("kind", table.kind, "must be at most 32 of a-z, 0-9 and -");
  table.library = fields.Whole("cublaslt", 1, kLibraryMax);
  fields.Mapping("measured", [&](ProductFields& at) {
    table.device = at.Text("device");
    table.driver = at.Text("driver");
    table.source = at.Text("source");
    table.power_limit_watts = at.Number("power_limit_watts");
  });
  fields.List("products", [&](ProductFields& at) {
    ProductEntry& entry = table.entries.emplace_back();
    entry.key = ReadKey(at);
    if (const std::string wrong = WhatIsWrongWith(entry.key); !wrong.empty())
      reader.Add(at.Path("a"), "", wrong);
    at.Mapping("algorithm", [&](ProductFields& of) { entry.algorithm = ReadAlgorithm(of); });
    entry.cost = ReadCost(at, "cost");
    entry.before = ReadCost(at, "before");
  });
}

bool ByKey(const ProductEntry& a, const ProductEntry& b) { return a.key < b.key; }

// What entries come to together.
void CheckEntries(const ProductTable& table, FieldReader& reader) {
  if (table.entries.size() > kProductEntriesMax) {
    reader.Add("products", absl::StrCat(table.entries.size()),
               absl::StrCat("must be at most ", kProductEntriesMax));
  }
  const auto twice =
      std::adjacent_find(table.entries.begin(), table.entries.end(),
                         [](const auto& a, const auto& b) { return a.key == b.key; });
  if (twice != table.entries.end()) reader.Add("products", ToString(twice->key), "is there twice");
}

Tree CostTree(const ProductCost& cost) {
  return job::MappingTree(
      {{"seconds", job::NumberTree(cost.seconds)}, {"joules", job::NumberTree(cost.joules)}});
}

Tree AlgorithmTree(const ProductAlgorithm& of) {
  const auto number = [](int64_t value) { return job::NumberTree(value); };
  return job::MappingTree({{"id", number(of.id)},
                           {"tile", number(of.tile)},
                           {"stages", number(of.stages)},
                           {"split_k", number(of.split_k)},
                           {"reduction", number(of.reduction)},
                           {"swizzle", number(of.swizzle)},
                           {"custom", number(of.custom)},
                           {"inner_shape", number(of.inner_shape)},
                           {"cluster_shape", number(of.cluster_shape)},
                           {"workspace_bytes", number(of.workspace_bytes)}});
}

Tree EntryTree(const ProductEntry& entry) {
  const ProductKey& key = entry.key;
  const auto type = [](ProductType of) { return job::TextTree(std::string(NameOfType(of))); };
  return job::MappingTree({{"a", type(key.a)},
                           {"b", type(key.b)},
                           {"d", type(key.d)},
                           {"a_turned", job::FlagTree(key.a_turned)},
                           {"b_turned", job::FlagTree(key.b_turned)},
                           {"add", job::FlagTree(key.add)},
                           {"fast", job::FlagTree(key.fast)},
                           {"bias", job::FlagTree(key.bias)},
                           {"m", job::NumberTree(key.m)},
                           {"n", job::NumberTree(key.n)},
                           {"k", job::NumberTree(key.k)},
                           {"algorithm", AlgorithmTree(entry.algorithm)},
                           {"cost", CostTree(entry.cost)},
                           {"before", CostTree(entry.before)}});
}

template <typename Wanted>
SharedProductTable FindTable(absl::Span<const absl::string_view> texts, const Wanted& wanted) {
  for (const absl::string_view text : texts) {
    absl::StatusOr<ProductTable> table = ReadProductTable(text);
    if (table.ok() && wanted(*table))
      return std::make_shared<const ProductTable>(*std::move(table));
  }
  return nullptr;
}

}  // namespace

absl::Span<const absl::string_view> ProductTypeNames() { return kTypes; }

double FlopsOf(const ProductKey& key) {
  return 2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) * static_cast<double>(key.k);
}

std::string ToString(const ProductKey& key) {
  return absl::StrCat(NameOfType(key.a), key.a_turned ? "^T" : "", " x ", NameOfType(key.b),
                      key.b_turned ? "^T" : "", key.add ? " added to " : " -> ", NameOfType(key.d),
                      ", ", key.m, " x ", key.n, " of ", key.k, key.fast ? ", fast" : "",
                      key.bias ? ", with bias" : "");
}

const ProductAlgorithm* ProductTable::Find(const ProductKey& key) const {
  const auto found = std::lower_bound(
      entries.begin(), entries.end(), key,
      [](const ProductEntry& entry, const ProductKey& of) { return entry.key < of; });
  return found != entries.end() && found->key == key ? &found->algorithm : nullptr;
}

absl::StatusOr<ProductTable> ReadProductTable(absl::string_view json) {
  ASSIGN_OR_RETURN(const Tree document, job::ParseJson(json, kNodesMax));
  FieldReader reader;
  ProductTable table;
  {
    ProductFields fields(reader, "", document);
    ReadDocument(fields, reader, table);
  }
  std::sort(table.entries.begin(), table.entries.end(), ByKey);
  CheckEntries(table, reader);
  RETURN_IF_ERROR(reader.Status());
  return table;
}

std::string WriteProductTable(const ProductTable& table) {
  std::vector<ProductEntry> entries = table.entries;
  std::sort(entries.begin(), entries.end(), ByKey);
  std::vector<Tree> products;
  for (const ProductEntry& entry : entries) products.push_back(EntryTree(entry));
  return job::EmitJson(job::MappingTree(
      {{"version", job::NumberTree(kProductTableVersion)},
       {"kind", job::TextTree(table.kind)},
       {"cublaslt", job::NumberTree(table.library)},
       {"measured",
        job::MappingTree({{"device", job::TextTree(table.device)},
                          {"driver", job::TextTree(table.driver)},
                          {"power_limit_watts", job::NumberTree(table.power_limit_watts)},
                          {"source", job::TextTree(table.source)}})},
       {"products", job::ListTree(std::move(products))}}));
}

std::string TableNameOf(const ProductTable& table) {
  return absl::StrCat(table.kind, "-cublaslt-", table.library);
}

std::string ReferenceOf(const ProductTable& table) {
  return absl::StrCat(TableNameOf(table), "@", Digest(WriteProductTable(table)));
}

SharedProductTable FindProductTable(absl::Span<const absl::string_view> texts,
                                    absl::string_view kind, int64_t library) {
  return FindTable(texts, [&](const ProductTable& table) {
    return table.kind == kind && table.library == library;
  });
}

SharedProductTable FindProductTable(absl::Span<const absl::string_view> texts,
                                    absl::string_view reference) {
  return FindTable(texts,
                   [&](const ProductTable& table) { return ReferenceOf(table) == reference; });
}

bool HasProductTable(absl::Span<const absl::string_view> texts, absl::string_view kind) {
  return FindTable(texts, [&](const ProductTable& table) { return table.kind == kind; }) != nullptr;
}

double ProductCostOf(const ProductCost& cost, double limit_watts) {
  return limit_watts > 0 ? std::max(cost.seconds, cost.joules / limit_watts) : cost.seconds;
}

std::optional<size_t> ChooseProduct(const ProductCost& before,
                                    absl::Span<const ProductCost> candidates, double limit_watts) {
  double least = ProductCostOf(before, limit_watts) * (1 - kProductGain);
  const auto best = [&](double most) {
    std::optional<size_t> chosen;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (ProductCostOf(candidates[i], limit_watts) > most) continue;
      if (!chosen.has_value() || candidates[i].joules < candidates[*chosen].joules) chosen = i;
    }
    return chosen;
  };
  if (!best(least).has_value()) return std::nullopt;
  const double gained = least;
  for (const ProductCost& candidate : candidates)
    least = std::min(least, ProductCostOf(candidate, limit_watts));
  return best(std::min(gained, least * (1 + kProductSame)));
}

}  // namespace phalanx::schedule

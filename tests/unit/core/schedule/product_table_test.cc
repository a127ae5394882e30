#include "core/schedule/product_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/violation.h"
#include "core/schedule/device_kinds.h"

namespace phalanx::schedule {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Two entries, the later key first.
ProductTable ATable() {
  ProductTable table{.kind = "h200",
                     .library = 130100,
                     .device = "NVIDIA H200",
                     .driver = "580.1",
                     .source = "here",
                     .power_limit_watts = 700};
  const ProductEntry fp8 = {
      .key = {.a = ProductType::kE5M2,
              .b = ProductType::kE4M3,
              .d = ProductType::kFp32,
              .b_turned = true,
              .add = true,
              .m = 6144,
              .n = 4096,
              .k = 16384},
      .algorithm = {.id = 66, .tile = 20, .stages = 36, .custom = 7, .cluster_shape = 3},
      .cost = {.seconds = 1.0 / 3e3, .joules = 0.25},
      .before = {.seconds = 4e-4, .joules = 0.5}};
  const ProductEntry bf16 = {.key = {.b_turned = true, .bias = true, .m = 8, .n = 16, .k = 32},
                             .algorithm = {.id = 1, .split_k = 4, .workspace_bytes = 1024},
                             .cost = {.seconds = 1e-5, .joules = 1e-3},
                             .before = {.seconds = 2e-5, .joules = 2e-3}};
  table.entries = {bf16, fp8};
  return table;
}

std::vector<std::string> WrongInTable(const std::string& from, const std::string& to) {
  const std::string text = WriteProductTable(ATable());
  const std::string spoiled = absl::StrReplaceAll(text, {{from, to}});
  EXPECT_NE(spoiled, text) << from;
  std::vector<std::string> lines;
  for (const Violation& violation : ViolationsOf(ReadProductTable(spoiled).status()))
    lines.push_back(ToString(violation));
  return lines;
}

TEST(ProductTableTest, WhatIsWritten_IsRead_InWhateverOrder) {
  const ProductTable table = ATable();
  const auto read = ReadProductTable(WriteProductTable(table));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, table);
  ProductTable turned = table;
  std::swap(turned.entries[0], turned.entries[1]);
  EXPECT_EQ(WriteProductTable(turned), WriteProductTable(table));
  EXPECT_EQ(ReferenceOf(turned), ReferenceOf(table));
}

TEST(ProductTableTest, Find_IsByAllOfTheKey) {
  const ProductTable table = ATable();
  for (const ProductEntry& entry : table.entries) {
    ASSERT_NE(table.Find(entry.key), nullptr);
    EXPECT_EQ(*table.Find(entry.key), entry.algorithm);
    std::vector<ProductKey> others(8, entry.key);
    others[0].d = entry.key.d == ProductType::kBf16 ? ProductType::kFp32 : ProductType::kBf16;
    others[1].a_turned = !others[1].a_turned;
    others[2].b_turned = !others[2].b_turned;
    others[3].add = !others[3].add;
    others[4].fast = !others[4].fast;
    others[5].bias = !others[5].bias;
    others[6].m += 1;
    others[7].k += 1;
    for (const ProductKey& other : others) EXPECT_EQ(table.Find(other), nullptr) << ToString(other);
  }
  EXPECT_EQ(ProductTable().Find(table.entries[0].key), nullptr);
}

TEST(ProductTableTest, WhatIsWrong_IsSaidAllAtOnce_WithItsField) {
  EXPECT_THAT(WrongInTable("\"version\": 1", "\"version\": 2"),
              ElementsAre(StartsWith("version: 2: ")));
  EXPECT_THAT(WrongInTable("\"kind\": \"h200\"", "\"kind\": \"H 200\""),
              ElementsAre(StartsWith("kind: H 200: ")));
  EXPECT_THAT(WrongInTable("\"seconds\"", "\"second\""), SizeIs(8))
      << "each unknown, and each missing";
  EXPECT_THAT(WrongInTable("\"m\": 8", "\"m\": 0"), ElementsAre(StartsWith("products[0].m: 0: ")));
  EXPECT_THAT(WrongInTable("\"a\": \"e5m2\"", "\"a\": \"fp32\""),
              Contains(StartsWith("products[1].a: fp32: ")));
  EXPECT_THAT(WrongInTable("\"workspace_bytes\": 1024", "\"workspace_bytes\": 33554433"),
              ElementsAre(StartsWith("products[0].algorithm.workspace_bytes: 33554433: ")));
  EXPECT_THAT(WrongInTable("\"id\": 66", "\"id\": -1"),
              ElementsAre(StartsWith("products[1].algorithm.id: -1: ")));
  EXPECT_THAT(WrongInTable("\"add\": true", "\"add\": 1"),
              ElementsAre(StartsWith("products[1].add: 1: ")));
  for (const char* number : {"0", "-1", "1e30", "\"1\"", "null"}) {
    EXPECT_THAT(WrongInTable("\"joules\": 0.25", absl::StrCat("\"joules\": ", number)),
                ElementsAre(StartsWith("products[1].cost.joules: ")))
        << number;
  }
  // Two at once.
  EXPECT_THAT(WrongInTable("\"cublaslt\": 130100", "\"cublaslt\": 1.5, \"more\": 1"),
              ElementsAre(StartsWith("cublaslt: 1.5: "), HasSubstr("more: unknown field")));
}

TEST(ProductTableTest, ProductsThatThereAreNot_AreRefused) {
  ProductTable table = ATable();
  const auto status = [&] {
    return std::string(ReadProductTable(WriteProductTable(table)).status().message());
  };
  table.entries.push_back(table.entries[0]);
  EXPECT_THAT(status(), HasSubstr("is there twice"));
  table = ATable();
  table.entries[0].key.fast = true;
  EXPECT_THAT(status(), HasSubstr("sums are fast in FP8 alone"));
  table = ATable();
  table.entries[1].key.b = ProductType::kE5M2;
  EXPECT_THAT(status(), HasSubstr("one operand at most may be e5m2"));
  table.entries[1].key.b = ProductType::kBf16;
  EXPECT_THAT(status(), HasSubstr("both operands must be bf16, or both FP8"));
  table = ATable();
  table.entries[1].key.a_turned = true;
  EXPECT_THAT(status(), HasSubstr("lie along their sum"));
  table = ATable();
  table.entries.resize(kProductEntriesMax + 1, table.entries[0]);
  for (size_t i = 0; i < table.entries.size(); ++i)
    table.entries[i].key.m = static_cast<int64_t>(i) + 1;
  EXPECT_THAT(status(), HasSubstr("must be at most 4096"));
  table.entries.pop_back();
  EXPECT_THAT(status(), IsEmpty());
}

TEST(ProductTableTest, Reference_IsOfAllThatATableSays) {
  const ProductTable table = ATable();
  EXPECT_THAT(ReferenceOf(table), StartsWith("h200-cublaslt-130100@"));
  ProductTable other = table;
  other.entries[0].algorithm.custom = 1;
  EXPECT_NE(ReferenceOf(other), ReferenceOf(table));
  other = table;
  other.entries[0].key.n = 24;
  EXPECT_NE(ReferenceOf(other), ReferenceOf(table));
  other = table;
  other.library += 1;
  EXPECT_NE(ReferenceOf(other), ReferenceOf(table));
}

TEST(ProductTableTest, Tables_AreFoundByKindAndLibrary_OrByReference) {
  ProductTable newer = ATable();
  newer.library = 130200;
  const std::string first = WriteProductTable(ATable()), second = WriteProductTable(newer);
  const std::vector<absl::string_view> texts = {"no table", first, second};
  EXPECT_EQ(*FindProductTable(texts, "h200", 130200), newer);
  EXPECT_EQ(FindProductTable(texts, "h200", 130300), nullptr);
  EXPECT_EQ(FindProductTable(texts, "h100", 130100), nullptr);
  EXPECT_EQ(*FindProductTable(texts, ReferenceOf(newer)), newer);
  EXPECT_EQ(FindProductTable(texts, "h200-cublaslt-130200@0"), nullptr);
  EXPECT_TRUE(HasProductTable(texts, "h200"));
  EXPECT_FALSE(HasProductTable(texts, "h100"));
}

TEST(ProductTableTest, TablesOfThisBuild_AreSound_AndEachOfAKindAndALibrary) {
  std::vector<std::string> names;
  for (const absl::string_view text : BuiltInProductTables()) {
    const auto table = ReadProductTable(text);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_EQ(KindOfDevice(table->device), table->kind);
    for (const ProductEntry& entry : table->entries) {
      EXPECT_EQ(ChooseProduct(entry.before, {entry.cost}, table->power_limit_watts), 0u)
          << ToString(entry.key);
    }
    EXPECT_THAT(names, Not(Contains(TableNameOf(*table))));
    names.push_back(TableNameOf(*table));
  }
}

// Of equal seconds the one that takes fewer joules; what is not held back goes by seconds.
TEST(ChooseProductTest, Cost_IsTheLargerOfSecondsAndOfJoulesAtTheLimit) {
  const ProductCost before = {.seconds = 1e-3, .joules = 0.7};
  const std::vector<ProductCost> candidates = {
      {.seconds = 0.90e-3, .joules = 0.72},  // quicker, and takes more
      {.seconds = 0.95e-3, .joules = 0.66},
      {.seconds = 1.20e-3, .joules = 0.40}};
  EXPECT_EQ(ChooseProduct(before, candidates, 700), 1u);
  EXPECT_EQ(ChooseProduct(before, candidates, 0), 0u) << "nothing holds the board back";
  EXPECT_EQ(ChooseProduct(before, candidates, 2000), 0u);
  EXPECT_EQ(ChooseProduct(before, candidates, 300), 2u) << "joules alone count";
}

TEST(ChooseProductTest, WhatIsNoBetterThanNoise_IsNotChosen) {
  const ProductCost before = {.seconds = 1e-3, .joules = 0.7};
  EXPECT_EQ(ChooseProduct(before, {}, 700), std::nullopt);
  EXPECT_EQ(ChooseProduct(before, {{before}}, 700), std::nullopt);
  EXPECT_EQ(ChooseProduct(before, {{{.seconds = 0.995e-3, .joules = 0.1}}}, 700), std::nullopt);
  EXPECT_EQ(ChooseProduct(before, {{{.seconds = 0.98e-3, .joules = 0.68}}}, 700), 0u);
}

TEST(ChooseProductTest, OfCostsThatAreTheSame_TheFewestJoulesAreTaken_ThenTheFirst) {
  const ProductCost before = {.seconds = 1e-3, .joules = 0.3};
  const std::vector<ProductCost> candidates = {{.seconds = 0.900e-3, .joules = 0.30},
                                               {.seconds = 0.902e-3, .joules = 0.20},
                                               {.seconds = 0.901e-3, .joules = 0.20},
                                               {.seconds = 0.910e-3, .joules = 0.10}};
  EXPECT_EQ(ChooseProduct(before, candidates, 700), 1u);
}

}  // namespace
}  // namespace phalanx::schedule

#include "worker/rank/product_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/job/failure.h"
#include "tests/support/files.h"
#include "worker/model/products.h"

namespace phalanx::rank {
namespace {

using ::testing::HasSubstr;

// A table of H200s and the library of this process.
class ProductTablesTest : public testing::Test {
 protected:
  ProductTablesTest() {
    table_ = {.kind = "h200",
              .library = std::max<int64_t>(1, model::ProductLibrary()),
              .device = "NVIDIA H200",
              .driver = "580",
              .source = "here",
              .power_limit_watts = 700};
    table_.entries.push_back({.key = {.b_turned = true, .m = 64, .n = 64, .k = 64},
                              .cost = {.seconds = 1, .joules = 1},
                              .before = {.seconds = 2, .joules = 2}});
    Write(schedule::WriteProductTable(table_));
  }
  ~ProductTablesTest() override { unsetenv(kProductsVariable); }
  void Write(const std::string& text) {
    support::WriteFile(path_, text);
    setenv(kProductsVariable, path_.c_str(), 1);
  }

  const std::string path_ = support::MakeFolder("product-tables") + "/table.json";
  schedule::ProductTable table_;
};

TEST_F(ProductTablesTest, TableOfThePlan_IsFoundByItsReference) {
  EXPECT_EQ(*ProductsOfPlan("", 1), nullptr);
  const auto found = ProductsOfPlan(schedule::ReferenceOf(table_), table_.library);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(**found, table_);
}

// A recovery has no time to read it once more.
TEST_F(ProductTablesTest, TableOfTheEpochBefore_IsNotReadAgain) {
  const std::string reference = schedule::ReferenceOf(table_);
  const auto first = ProductsOfPlan(reference, table_.library);
  ASSERT_TRUE(first.ok()) << first.status();
  Write("{}");
  const auto second = ProductsOfPlan(reference, table_.library);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, *first);
}

TEST_F(ProductTablesTest, TableThatTheRankDoesNotHave_IsRefusedByName) {
  const std::string reference = "h200-cublaslt-1@00";
  const absl::Status unknown = ProductsOfPlan(reference, 1).status();
  EXPECT_EQ(job::KindOf(unknown), job::FailureKind::kVersionMismatch);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr(reference));
  const absl::Status other =
      ProductsOfPlan(schedule::ReferenceOf(table_), table_.library + 1).status();
  EXPECT_EQ(job::KindOf(other), job::FailureKind::kVersionMismatch);
  EXPECT_THAT(std::string(other.message()), HasSubstr(schedule::ReferenceOf(table_)));
}

TEST_F(ProductTablesTest, TableOfADevice_IsThatOfItsKindAndOfTheLibraryThatIsLoaded) {
  const bool cuda = model::ProductLibrary() > 0;  // else none is for its version
  EXPECT_EQ(*ProductsOfDevice("NVIDIA H200"), cuda ? schedule::ReferenceOf(table_) : "none");
  table_.kind = "h100";
  Write(schedule::WriteProductTable(table_));
  EXPECT_NE(*ProductsOfDevice("NVIDIA H200"), schedule::ReferenceOf(table_));
  setenv(kProductsVariable, "none", 1);
  EXPECT_EQ(*ProductsOfDevice("NVIDIA H100 80GB HBM3"), "none");
}

TEST_F(ProductTablesTest, FileThatIsNoTable_IsAnErrorWithItsName) {
  Write("{}");
  EXPECT_THAT(std::string(ProductsOfDevice("NVIDIA H200").status().message()), HasSubstr(path_));
  setenv(kProductsVariable, "/no/such/table.json", 1);
  EXPECT_THAT(std::string(ProductsOfDevice("NVIDIA H200").status().message()),
              HasSubstr("/no/such/table.json"));
}

}  // namespace
}  // namespace phalanx::rank

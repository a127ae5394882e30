#include "worker/agent/products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/schedule/product_table.h"
#include "tests/support/files.h"

namespace phalanx::agent {
namespace {

using ::testing::HasSubstr;

// With a file named, ranks are asked whether or not this build has a table.
class ProductsOfRanksTest : public testing::Test {
 protected:
  void SetUp() override { setenv("PHALANX_PRODUCTS", "/tables/h200.json", 1); }
  void TearDown() override { unsetenv("PHALANX_PRODUCTS"); }

  // In the place of the rank program.
  std::string Program(const std::string& script) {
    const std::string path = folder_ + "/program";
    support::WriteFile(path, "#!/bin/sh\n" + script);
    chmod(path.c_str(), 0755);
    return path;
  }
  const std::string folder_ = support::MakeFolder("products");
};

TEST_F(ProductsOfRanksTest, Table_IsWhatTheRankProgramSays) {
  const std::string program = Program(
      "echo noise; echo more >&2; [ \"$1 $2\" = '--products NVIDIA H200' ] && "
      "echo products h200-cublaslt-130100@7f\n");
  EXPECT_EQ(*ProductsOfRanks(program, {"NVIDIA H200", "NVIDIA H200"}), "h200-cublaslt-130100@7f");
}

TEST_F(ProductsOfRanksTest, DevicesThatAreNotOfOneKindThatIsKnown_AreNotAsked) {
  for (const std::vector<std::string>& names : {std::vector<std::string>{},
                                                {"NVIDIA H200", "NVIDIA H100 80GB HBM3"},
                                                {"", ""},
                                                {"NVIDIA L4"}})
    EXPECT_EQ(*ProductsOfRanks("/no/such/program", names), "");
}

TEST_F(ProductsOfRanksTest, NobodyIsAsked_WhereTablesAreOff_OrThereIsNone) {
  setenv("PHALANX_PRODUCTS", "none", 1);
  EXPECT_EQ(*ProductsOfRanks("/no/such/program", {"NVIDIA H200"}), "");
  unsetenv("PHALANX_PRODUCTS");
  if (schedule::HasProductTable(schedule::BuiltInProductTables(), "h100")) return;
  EXPECT_EQ(*ProductsOfRanks("/no/such/program", {"NVIDIA H100 80GB HBM3"}), "");
}

TEST_F(ProductsOfRanksTest, ProgramThatSaysSomethingElse_IsAnErrorWithItsWords) {
  const auto other = ProductsOfRanks(Program("echo cannot load it; exit 1\n"), {"NVIDIA H200"});
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("cannot load it"));
  EXPECT_EQ(ProductsOfRanks("/no/such/program", {"NVIDIA H200"}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace phalanx::agent

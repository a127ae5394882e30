#include "worker/model/products.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace phalanx::model {
namespace {

using schedule::ProductKey;

constexpr ProductKey kKey{.b_turned = true, .m = 16, .n = 32, .k = 64};

class ProductsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto table = std::make_shared<schedule::ProductTable>();
    table->entries = {{.key = kKey, .algorithm = {.id = 3}}};
    UseProductTable(std::move(table));
  }
  void TearDown() override { UseProductTable(nullptr); }
};

// Of two epochs side by side in one process each has its own.
TEST_F(ProductsTest, Table_IsOfTheThreadThatMultiplies) {
  ASSERT_NE(AlgorithmFor(kKey), nullptr);
  EXPECT_EQ(AlgorithmFor(kKey)->id, 3);
  ProductKey other = kKey;
  other.bias = true;
  EXPECT_EQ(AlgorithmFor(other), nullptr);
  std::thread([] { EXPECT_EQ(AlgorithmFor(kKey), nullptr); }).join();
  UseProductTable(nullptr);
  EXPECT_EQ(AlgorithmFor(kKey), nullptr);
}

TEST_F(ProductsTest, OnCpus_ProductsAreThoseOfATen) {
  const at::Tensor a = at::randn({16, 64}), b = at::randn({32, 64}).t(), bias = at::randn({32});
  EXPECT_TRUE(at::equal(Product(a, b), at::mm(a, b)));
  EXPECT_TRUE(at::equal(Product(a, b, bias), at::addmm(bias, a, b)));
  at::Tensor d = at::empty({20, 32});
  ProductInto(d.narrow(0, 4, 16), a, b, bias);
  EXPECT_TRUE(at::equal(d.narrow(0, 4, 16), at::addmm(bias, a, b)));
  ProductInto(d.narrow(0, 4, 16), a, b);
  EXPECT_TRUE(at::equal(d.narrow(0, 4, 16), at::mm(a, b)));
}

TEST_F(ProductsTest, WhatWasMet_IsCounted_OnEachThreadForItself) {
  const ProductKey other{.m = 1, .n = 2, .k = 3};
  std::thread([&] {
    EXPECT_THAT(ProductsMet(), testing::IsEmpty());
    NoteProduct(kKey, true);
    NoteProduct(other, false);
    NoteProduct(kKey, false);
    const auto met = ProductsMet();
    ASSERT_EQ(met.size(), 2u);
    EXPECT_EQ(met[0].key, other);
    EXPECT_EQ(met[1].key, kKey);
    EXPECT_EQ(met[1].count, 2);
    EXPECT_FALSE(met[1].by_table);
    for (int64_t m = 0; m < 2000; ++m) NoteProduct({.m = m, .n = 8, .k = 8}, false);
    EXPECT_EQ(ProductsMet().size(), kProductsMetMax);
  }).join();
}

}  // namespace
}  // namespace phalanx::model

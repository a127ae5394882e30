#include "worker/model/token_rows.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace phalanx::model {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(TokenRowsTest, Text_IsListedByTokenThenByRow) {
  const std::vector<int64_t> tokens = {7, 2, 7, 0, 2, 7};
  const TokenLists lists = ListTokens(tokens, {});
  EXPECT_EQ(lists.source, tokens);
  EXPECT_THAT(lists.next, IsEmpty());
  EXPECT_THAT(lists.tokens, ElementsAre(0, 2, 2, 7, 7, 7));
  EXPECT_THAT(lists.order, ElementsAre(3, 1, 4, 0, 2, 5));
}

TEST(TokenRowsTest, ItemsAndPadding_AreNoText) {
  const TokenLists lists = ListTokens({5, 5, 6, kPadding, 5}, {2, 0});
  EXPECT_THAT(lists.source, ElementsAre(-2, 5, -1, 0, 5));
  EXPECT_THAT(lists.next, IsEmpty());
  EXPECT_THAT(lists.tokens, ElementsAre(5, 5));
  EXPECT_THAT(lists.order, ElementsAre(1, 4));
}

TEST(TokenRowsTest, ItemsAtOnePosition_LeadFromOneToTheNext) {
  const TokenLists lists = ListTokens({5, kPadding}, {1, 0, 1, 1});
  EXPECT_THAT(lists.source, ElementsAre(-2, -1));
  EXPECT_THAT(lists.next, ElementsAre(2, -1, 3, -1));
  EXPECT_THAT(lists.tokens, IsEmpty());
}

TEST(TokenRowsTest, Tensors_AreTheLists) {
  const TokenRows rows =
      MakeTokenRows(at::tensor({5, 5, 6, 1}, at::kLong).view({2, 2}), at::tensor({2}, at::kLong));
  EXPECT_TRUE(at::equal(rows.source, at::tensor({5, 5, -1, 1}, at::kLong)));
  EXPECT_FALSE(rows.next.defined());
  EXPECT_TRUE(at::equal(rows.tokens, at::tensor({1, 5, 5}, at::kInt)));
  EXPECT_TRUE(at::equal(rows.order, at::tensor({3, 0, 1}, at::kLong)));
}

}  // namespace
}  // namespace phalanx::model

// Sums over rows, rows of tables, and losses over a vocabulary.
#include <tuple>
#include <utility>

#include "tests/gpu/kernels/kernels_cuda_fixture.h"

namespace phalanx::model {
namespace {

class RowsCudaTest : public KernelsCudaTest {};

TEST_P(RowsCudaTest, Small_ColumnSums_OfSomeColumns) {
  for (const auto& [rows, features] : kShapes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << features);
    const at::Tensor values = Random({rows, 3 * features});
    const at::Tensor sum = Random({features}, at::kFloat);
    for (const int64_t first : {int64_t{0}, features}) {
      const at::Tensor part = values.narrow(1, first, features);
      const Tensors results = Twice([&] {
        const at::Tensor total = sum.clone();
        AddColumnSums(total, part);
        return Tensors{total};
      });
      ExpectClose(results[0], Wide(sum) + Wide(part).sum(0), "sum");
    }
  }
}

TEST_P(RowsCudaTest, Small_ColumnSums_OfMatrices) {
  const at::Tensor values = Random({6, 77, 136}), sum = Random({77, 136}, at::kFloat);
  const at::Tensor total = sum.clone();
  AddColumnSums(total, values);
  ExpectClose(total, Wide(sum) + Wide(values).sum(0), "sum");
}

TEST_P(RowsCudaTest, Small_Rows_TakenAddedAndScattered) {
  // Tables of many rows, and of so few that runs of equal ones are longer than chunks.
  for (const auto& [count, features, table_rows] : {std::tuple{0, 64, 5},
                                                    {1, 37, 3},
                                                    {50, 5, 1},
                                                    {333, 64, 3},
                                                    {700, 1152, 1000},
                                                    {64, 4096, 20},
                                                    {16, 2052, 1}}) {
    SCOPED_TRACE(testing::Message() << count << " x " << features << " of " << table_rows);
    const at::Tensor table = Random({table_rows, features}), values = Random({count, features});
    const at::Tensor index = Indices(table_rows, count);
    const at::Tensor keep = at::rand({count}, at::kFloat).gt(0.3).cuda();
    for (const at::Tensor& kept : {at::Tensor(), keep}) {
      const at::Tensor mask =
          kept.defined() ? kept.to(at::kDouble).unsqueeze(1)
                         : at::ones({count, 1}, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
      const at::Tensor sum = Random({table_rows, features}, at::kFloat);
      const Tensors results = Twice([&] {
        const at::Tensor total = sum.clone(), rows = table.clone();
        AddRows(total, index, kept, values);
        ScatterRows(rows, index, values.t().contiguous().t());
        return Tensors{TakeRows(table, index, kept), total, rows};
      });
      EXPECT_TRUE(at::equal(Wide(results[0]), Wide(table).index_select(0, index) * mask));
      ExpectClose(results[1], Wide(sum).index_add(0, index, Wide(values) * mask), "sum");
      ExpectClose(results[2], Wide(table).index_add(0, index, Wide(values)), "scattered");
    }
  }
}

// Rows of a microbatch with items here and there, some at one place, and padding behind; a
// vocabulary whole, and cut in three: tokens of one part in runs longer than chunks.
TEST_P(RowsCudaTest, Small_TokenRows_EmbeddedAndAdded) {
  for (const auto& [count, features, vocabulary, items] : {std::tuple{1, 64, 5, 0},
                                                           {1, 64, 5, 1},
                                                           {50, 5, 7, 20},
                                                           {333, 64, 9, 100},
                                                           {700, 1152, 1000, 60},
                                                           {65, 4096, 20, 3},
                                                           {128, 2052, 3, 0}}) {
    SCOPED_TRACE(testing::Message() << count << " x " << features << " of " << vocabulary << ", "
                                    << items << " of items");
    for (const bool apart : {true, false}) {
      const at::Tensor tokens = at::randint(vocabulary, {count}, at::kLong);
      const int64_t padding = count / 10;
      tokens.narrow(0, count - padding, padding).fill_(kPadding);
      const at::Tensor positions = apart ? at::randperm(count, at::kLong).narrow(0, 0, items)
                                         : at::randint(count, {items}, at::kLong);
      const TokenRows rows = MakeTokenRows(tokens, positions, at::kCUDA);
      const at::Tensor table = Random({vocabulary, features}), from = Random({items, features});
      const at::Tensor values = Random({count, features});
      const at::Tensor sum = Random({vocabulary, features}, at::kFloat);
      const int64_t cuts[] = {0, vocabulary / 3, vocabulary / 2, vocabulary};
      const Tensors results = Twice([&] {
        const at::Tensor total = sum.clone(), parts = sum.clone();
        AddTokenRows(total, 0, rows.tokens, rows.order, values);
        at::Tensor embedded = at::zeros({count, features}, Wide(table).options());
        for (int part = 0; part < 3; ++part) {
          const int64_t first = cuts[part], size = cuts[part + 1] - first;
          AddTokenRows(parts.narrow(0, first, size), first, rows.tokens, rows.order, values);
          embedded += Wide(EmbedRows(table.narrow(0, first, size), first, rows,
                                     part == 1 ? from : at::Tensor(), positions));
        }
        return Tensors{EmbedRows(table, 0, rows, from, positions), embedded, total, parts};
      });
      const at::Tensor is_item = at::zeros({count}, at::kBool).index_fill_(0, positions, true);
      const at::Tensor is_text = at::logical_and(is_item.logical_not(), tokens.ge(0)).cuda();
      const at::Tensor index = tokens.clamp_min(0).cuda(), there = positions.cuda();
      const at::Tensor rows_of_text = Wide(values) * is_text.to(at::kDouble).unsqueeze(1);
      ExpectClose(results[0],
                  Wide(table)
                      .index_select(0, index)
                      .index_fill_(0, there, 0)
                      .index_add_(0, there, Wide(from)),
                  "embedded");
      EXPECT_TRUE(at::equal(Wide(results[0]), results[1])) << "over three ranks";
      ExpectClose(results[2], Wide(sum).index_add(0, index, rows_of_text), "sum");
      EXPECT_TRUE(at::equal(results[2], results[3])) << "over three ranks";
    }
  }
}

// A vocabulary whole, and cut in two; rows that begin anywhere, rows without weight, labels in
// both parts.
TEST_P(RowsCudaTest, Small_CrossEntropy_WholeAndOverTwoRanks) {
  for (const auto& [rows, vocabulary, cut] : {std::tuple{0, 64, 32},
                                              {1, 5, 2},
                                              {7, 45, 26},
                                              {150, 8192, 4096},
                                              {40, 32003, 16000},
                                              {9, 50257, 1}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << vocabulary);
    const at::Tensor logits = Random({rows, vocabulary}) * 4;
    const at::Tensor labels = Indices(vocabulary, rows);
    const at::Tensor weights = at::rand({rows}, at::TensorOptions(at::kCUDA)).sub_(0.3).relu_();
    const at::Tensor log = at::log_softmax(Wide(logits), 1);
    const at::Tensor losses = -log.gather(1, labels.unsqueeze(1)).squeeze(1);
    const at::Tensor loss = (losses * Wide(weights)).sum();
    const at::Tensor gradient =
        (log.exp() - at::one_hot(labels, vocabulary)) * Wide(weights).unsqueeze(1);
    const Tensors results = Twice([&] {
      const auto part = [&](int64_t begin, int64_t count) {
        return logits.narrow(1, begin, count).clone(at::MemoryFormat::Contiguous);
      };
      const at::Tensor whole = logits.clone(), low = part(0, cut),
                       high = part(cut, vocabulary - cut);
      const at::Tensor alone = WholeCrossEntropy(whole, labels, weights, false);
      EXPECT_TRUE(at::equal(whole, logits));
      const at::Tensor gathered = at::stack({SoftmaxStatistics(low, labels, weights, 0),
                                             SoftmaxStatistics(high, labels, weights, cut)});
      const at::Tensor parted = CrossEntropy(low, gathered, labels, weights, 0, false);
      EXPECT_TRUE(at::equal(low, logits.narrow(1, 0, cut)));
      const at::Tensor beside = WholeCrossEntropy(whole, labels, weights, true);
      EXPECT_TRUE(at::equal(parted, CrossEntropy(low, gathered, labels, weights, 0, true)));
      EXPECT_TRUE(at::equal(parted, CrossEntropy(high, gathered, labels, weights, cut, true)));
      return Tensors{alone, parted, whole, at::cat({low, high}, 1), beside};
    });
    ExpectClose(results[0], loss, "loss");
    ExpectClose(results[1], loss, "loss over two ranks");
    ExpectClose(results[4], loss, "loss beside the gradient");
    ExpectClose(results[2], gradient, "gradient", 2 * Tolerance(logits));
    ExpectClose(results[3], gradient, "gradient over two ranks", 2 * Tolerance(logits));
  }
}

// Sizes of a training step, where 32 bits or one launch's blocks might not do.
TEST_P(RowsCudaTest, LargeVocabularies_EqualDefinition) {
  for (const auto& [rows, vocabulary] : {std::pair{300, 128256}, {150, 151936}, {140, 262144}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << vocabulary);
    const at::Tensor logits = Random({rows, vocabulary}) * 4;
    const at::Tensor labels = Indices(vocabulary, rows);
    const at::Tensor weights = at::rand({rows}, at::TensorOptions(at::kCUDA)).sub_(0.3).relu_();
    const at::Tensor log = at::log_softmax(Wide(logits), 1);
    const at::Tensor loss = (-log.gather(1, labels.unsqueeze(1)).squeeze(1) * Wide(weights)).sum();
    at::Tensor gradient = log.exp();
    gradient.scatter_add_(1, labels.unsqueeze(1), at::full({rows, 1}, -1.0, log.options()));
    gradient.mul_(Wide(weights).unsqueeze(1));
    const Tensors results = Twice([&] {
      const at::Tensor whole = logits.clone();
      return Tensors{WholeCrossEntropy(whole, labels, weights, true), whole};
    });
    ExpectClose(results[0], loss, "loss");
    ExpectClose(results[1], gradient, "gradient", 2 * Tolerance(logits));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RowsCudaTest, testing::Values(at::kBFloat16, at::kFloat), TypeName);

}  // namespace
}  // namespace phalanx::model

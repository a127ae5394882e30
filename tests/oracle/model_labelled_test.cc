// Work on the rows that are held to labels gives what work on all rows gives, in fp64 to 1e-12.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/oracle/model_harness.h"
#include "tests/oracle/random_microbatch.h"
#include "tests/support/specs.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::Regressor;

constexpr double kLabelledTolerance = 1e-12;

struct Result {
  double loss = 0;
  NamedTensors gradients;
};

// Of one microbatch after the other in one stage world.
Result Train(const job::JobSpec& spec, StageWorld::Labelled labelled,
             const std::vector<PlainMicrobatch>& batches, at::ScalarType type = at::kDouble) {
  StageWorld world(spec, type);
  world.set_labelled(labelled);
  Result result;
  for (const PlainMicrobatch& batch : batches) result.loss += world.RunStep(0, batch);
  result.gradients = world.Gradients();
  return result;
}

void ExpectSame(const job::JobSpec& spec, const std::vector<PlainMicrobatch>& batches) {
  const Result all = Train(spec, StageWorld::Labelled::kAll, batches);
  const Result counted = Train(spec, StageWorld::Labelled::kCounted, batches);
  EXPECT_NEAR(counted.loss, all.loss, kLabelledTolerance * all.loss);
  EXPECT_LT(LargestError(counted.gradients, all.gradients), kLabelledTolerance);
}

// Three sequences of 11 positions whose labels are where `labelled` says: flat positions.
PlainMicrobatch TextWith(const job::JobSpec& spec, const std::vector<int64_t>& labelled) {
  PlainMicrobatch batch =
      RandomMicrobatch(spec, {.samples = 3, .text = 11, .padding = 0, .items = 0}, at::kDouble);
  batch.label_weights.zero_();
  for (const int64_t row : labelled) batch.label_weights.flatten()[row].fill_(1);
  return batch;
}

// Of 33 rows: in the last sequence alone; one; a first one (whose queries and keys have no
// gradient) and another; some of each.
const std::vector<std::vector<int64_t>> kLabelled = {
    {25, 26, 27, 28, 29, 30, 31, 32}, {16}, {0, 12}, {3, 4, 5, 14, 20, 21, 30, 31}};

std::vector<int64_t> AllRows() {
  std::vector<int64_t> rows(33);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  return rows;
}

TEST(LabelledRowsTest, AnyRows_EqualWorkOnAll) {
  const job::JobSpec spec = AJob().Module("language", Llama({.mlp_size = 61, .vocabulary = 93}));
  for (const std::vector<int64_t>& rows : kLabelled) ExpectSame(spec, {TextWith(spec, rows)});
  ExpectSame(spec, {TextWith(spec, AllRows())});
}

TEST(LabelledRowsTest, TensorWidths_EqualWorkOnAll) {
  for (const int32_t width : {2, 3, 5}) {
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(testing::Message() << "tp " << width << (sequence ? " sliced" : ""));
      const job::JobSpec spec =
          AJob().Module("language", Llama({.vocabulary = 93}), {.tp = width, .sequence = sequence});
      for (const std::vector<int64_t>& rows : kLabelled) ExpectSame(spec, {TextWith(spec, rows)});
      ExpectSame(spec, {TextWith(spec, AllRows())});
    }
  }
}

TEST(LabelledRowsTest, Recomputation_EqualsWorkOnAll) {
  for (const job::Recompute recompute : {job::Recompute::kSelective, job::Recompute::kFull}) {
    for (const bool sequence : {false, true}) {
      const job::JobSpec spec = AJob().Module(
          "language", Llama(), {.tp = 2, .recompute = recompute, .sequence = sequence});
      for (const std::vector<int64_t>& rows : kLabelled) ExpectSame(spec, {TextWith(spec, rows)});
    }
  }
}

TEST(LabelledRowsTest, MicrobatchWithoutLabels_HasNoLossAndLeavesNoGradient) {
  for (const bool sequence : {false, true}) {
    const job::JobSpec spec =
        AJob().Module("language", Llama(), {.tp = 2, .pp = sequence ? 1 : 2, .sequence = sequence});
    const Result result = Train(spec, StageWorld::Labelled::kCounted, {TextWith(spec, {})});
    EXPECT_EQ(result.loss, 0);
    for (const auto& [name, gradient] : result.gradients) {
      EXPECT_EQ(gradient.abs().max().item<double>(), 0) << name;
    }
    ExpectSame(spec, {TextWith(spec, {}), TextWith(spec, {16})});
  }
}

TEST(LabelledRowsTest, LayersInStagesAndChunks_EqualWorkOnAll) {
  const job::JobSpec staged = AJob().Module("language", Llama({.tied_head = true}), {.pp = 4});
  const job::JobSpec folded = AJob()
                                  .Module("language", Llama(), {.tp = 2, .pp = 2})
                                  .Schedule(job::ScheduleName::kZeroBubbleV, 2);
  for (const job::JobSpec& spec : {staged, folded})
    ExpectSame(spec, {TextWith(spec, kLabelled[3])});
}

TEST(LabelledRowsTest, ModuleThatFeedsAnother_EqualsWorkOnAll) {
  for (const bool sequence : {false, true}) {
    const job::JobSpec spec = AJob()
                                  .Module("language", Llama(), {.tp = 2, .sequence = sequence})
                                  .Module("regressor", Regressor({.layers = 1}))
                                  .Edge("language", "regressor", {.projector = 40});
    ExpectSame(spec, {TextWith(spec, kLabelled[3])});
  }
}

TEST(LabelledRowsTest, FrozenModules_EqualWorkOnAll) {
  const job::JobSpec spec = AJob()
                                .Module("vision", ClipVision())
                                .Module("language", Llama(), {.tp = 2, .frozen = true})
                                .Edge("vision", "language", {.projector = 32});
  ExpectSame(spec, {RandomMicrobatch(spec, {.samples = 3}, at::kDouble)});
}

TEST(LabelledRowsTest, Repeated_GiveEqualBits) {
  const job::JobSpec spec = AJob().Module("language", Llama(), {.tp = 2, .sequence = true});
  PlainMicrobatch batch = TextWith(spec, kLabelled[3]);
  batch.label_weights = batch.label_weights.to(at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Result first = Train(spec, StageWorld::Labelled::kCounted, {batch}, type);
    const Result second = Train(spec, StageWorld::Labelled::kCounted, {batch}, type);
    EXPECT_EQ(first.loss, second.loss);
    EXPECT_EQ(LargestError(first.gradients, second.gradients), 0);
  }
}

}  // namespace
}  // namespace phalanx::oracle

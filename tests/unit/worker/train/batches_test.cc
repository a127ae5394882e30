// Shapes of what a stage gets, and the weights of what it learns.
#include "worker/train/batches.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/cost.h"
#include "core/posix/activity.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/train/all_places.h"
#include "worker/train/step_flops.h"

namespace phalanx::train {
namespace {

using support::AJob;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kHidden = 2;

// Samples of one position each but for the last one, each with a target row.
class FewSamples final : public SampleSource {
 public:
  FewSamples(int64_t size, int32_t longest) : size_(size), longest_(longest) {}
  int64_t size() const override { return size_; }
  data::SampleShape shape(int64_t sample) const override {
    ++looks;
    data::SampleShape shape;
    shape.positions = sample + 1 == size_ ? longest_ : 1;
    shape.target_rows = 1;
    return shape;
  }
  absl::Span<const data::ItemRows> rows(int64_t) const override { return {}; }
  std::string NameOf(int64_t sample) const override { return absl::StrCat("sample ", sample); }
  void Announce(absl::Span<const int64_t>) override {}
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) override {
    if (on_take != nullptr) on_take();
    auto taken = std::make_shared<data::Sample>();
    const auto positions = static_cast<size_t>(shape(sample).positions);
    taken->tokens.resize(positions);
    taken->labels.resize(positions);
    taken->label_counts.resize(positions);
    for (size_t t = positions - std::min<size_t>(positions, counted); t < positions; ++t) {
      taken->label_counts[t] = 1;
      taken->labels[t] = static_cast<int32_t>(10 * sample + static_cast<int64_t>(t));
    }
    taken->target.assign(kHidden, 1.0f);
    if (sample == broken) {
      taken->target.assign(kHidden, 0.0f);
      taken->target_finite = false;
      taken->target_reason = "made so";
    }
    return std::shared_ptr<const data::Sample>(std::move(taken));
  }

  int64_t broken = -1;
  size_t counted = 0;  // of the last positions of each sample
  mutable int64_t looks = 0;
  std::function<void()> on_take;

 private:
  const int64_t size_;
  const int32_t longest_;
};

plan::Plan PlanOfContext(int64_t context) {
  const support::LlamaShape shape = {
      .hidden_size = kHidden, .layers = 1, .heads = 1, .kv_heads = 1, .context = context};
  const job::JobSpec spec = AJob()
                                .Module("language", support::Llama(shape))
                                .Module("regressor", support::Regressor(shape))
                                .Edge("language", "regressor")
                                .Batch(3, 3);
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, 2), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : plan::Plan();
}

TEST(BatchesTest, Length_IsRoundedUpWithinTheContext) {
  FewSamples source(3, 10);
  const auto length = [&](int64_t context) {
    const plan::Plan plan = PlanOfContext(context);
    const Batches batches(plan, AllPlaces(plan), source, at::kCPU, at::kFloat, 8);
    return batches.ShapeOf(batches.OfStep(1)[0], {0, 3}).length;
  };
  EXPECT_EQ(length(64), 16);
  EXPECT_EQ(length(13), 13) << "positions beyond the context have no place";
}

// Two replicas of the language model, four of the encoder on the same ranks.
TEST(BatchesTest, Step_LooksOnlyAtTheSamplesOfTheRanksLanes) {
  const job::JobSpec spec =
      AJob()
          .Module("vision", support::ClipVision(), {.dp = 4, .offset = 0})
          .Module("language", support::Llama(), {.tp = 2, .dp = 2, .offset = 0})
          .Edge("vision", "language")
          .Batch(12, 3);
  const plan::Plan plan = *plan::MakePlan(spec, plan::MakeCluster(1, 4), Epoch{1});
  int64_t tokens = 0;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    FewSamples source(100, 10);
    const std::vector<plan::Place> places = plan.PlacesOf(Rank{rank});
    const Batches batches(plan, places, source, at::kCPU, at::kFloat, 1);
    const std::vector<Microbatch> step = batches.OfStep(3);
    ASSERT_EQ(static_cast<int64_t>(step.size()), plan.microbatches);
    int64_t lanes = 0;
    for (int64_t m = 0; m < plan.microbatches; ++m) {
      const plan::MicrobatchSamples all = plan::SamplesOfMicrobatch(plan, m);
      const Microbatch& mine = step[static_cast<size_t>(m)];
      for (const plan::Place& place : places) {
        const plan::UnitRange lane = plan::LaneSamples(plan, place.module, place.dp, all);
        lanes += lane.count;
        for (int64_t i = lane.first; i < lane.end(); ++i) {
          EXPECT_EQ(mine.samples[mine.window.IndexOf(i)],
                    plan::SampleAt(spec.seed, 100, 2 * 12 + all.samples[static_cast<size_t>(i)]));
        }
      }
    }
    EXPECT_LE(source.looks, lanes) << "rank " << rank;
    EXPECT_LT(source.looks, 12) << "rank " << rank;
    tokens += batches.VolumeOf(step).tokens;
    EXPECT_LE(source.looks, lanes) << "rank " << rank;
  }
  FewSamples source(100, 10);
  int64_t expected = 0;
  for (int64_t position = 2 * 12; position < 3 * 12; ++position)
    expected += source.shape(plan::SampleAt(spec.seed, 100, position)).positions;
  EXPECT_EQ(tokens, expected) << "every sample counts on one rank";
}

model::StageInput LabelsOf(SampleSource& source, int64_t length_multiple,
                           const at::Tensor& valid = {}, bool all_rows = false) {
  const plan::Plan plan = PlanOfContext(1024);
  Batches batches(plan, AllPlaces(plan), source, at::kCPU, at::kFloat, length_multiple);
  batches.ListAllRows(all_rows);
  std::vector<Batches::CorruptSample> corrupt;
  model::StageInput input;
  EXPECT_TRUE(batches
                  .FillDecoder({.module = 0, .loss = true}, batches.OfSamples({{0, 1, 2}}), {0, 3},
                               valid, input, corrupt)
                  .ok());
  return input;
}

// Rows of 10 positions: the first one of samples 0 and 1, all of sample 2.
TEST(BatchesTest, Labels_AreOfTheRowsThatCount) {
  FewSamples source(3, 10);
  source.counted = 3;
  const model::StageInput input = LabelsOf(source, 1);
  const at::Tensor rows = at::tensor({0, 10, 27, 28, 29}, at::kLong);
  EXPECT_TRUE(at::equal(input.labelled.rows, rows));
  EXPECT_TRUE(at::equal(input.labels, at::tensor({0, 10, 27, 28, 29}, at::kLong)));
  EXPECT_TRUE(at::equal(input.label_weights, at::ones({5})));
  EXPECT_TRUE(at::equal(input.labelled.chosen.nonzero().flatten(), rows));
  EXPECT_TRUE(at::equal(input.labelled.place.index_select(0, rows), at::arange(5, at::kLong)));
  EXPECT_EQ(input.labelled.place.size(0), 30);
}

TEST(BatchesTest, LabelsOfASampleThatIsNotValid_WeighNothing) {
  FewSamples source(3, 10);
  source.counted = 3;
  const model::StageInput input = LabelsOf(source, 1, at::tensor({1.0f, 1.0f, 0.0f}));
  EXPECT_TRUE(at::equal(input.label_weights, at::tensor({1.0f, 1.0f, 0.0f, 0.0f, 0.0f})));
}

TEST(BatchesTest, NoLabels_LeaveOneRowThatDoesNotCount) {
  FewSamples source(3, 10);
  const model::StageInput input = LabelsOf(source, 1);
  EXPECT_TRUE(at::equal(input.labelled.rows, at::zeros({1}, at::kLong)));
  EXPECT_TRUE(at::equal(input.label_weights, at::zeros({1})));
}

TEST(BatchesTest, LabelledRows_AreFilledUpToAMultiple_AndNeverMoreThanAll) {
  FewSamples source(3, 500);
  source.counted = 200;
  const model::StageInput input = LabelsOf(source, 8);
  EXPECT_EQ(input.labelled.rows.size(0), 256);
  EXPECT_EQ(input.label_weights.sum().item<float>(), 202);
  EXPECT_EQ(input.labelled.chosen.sum().item<int64_t>(), 202);
  EXPECT_EQ(input.labelled.rows[255].item<int64_t>(), input.labelled.rows[201].item<int64_t>());
  EXPECT_EQ(input.labelled.place[input.labelled.rows[255].item<int64_t>()].item<int64_t>(), 201);

  FewSamples small(3, 10);
  small.counted = 3;
  const model::StageInput all = LabelsOf(small, 8);
  EXPECT_TRUE(all.labelled.all());
  EXPECT_EQ(all.labels.size(0), 3 * 16);
  EXPECT_EQ(all.label_weights.sum().item<float>(), 5);
}

TEST(BatchesTest, LabelledRowsOfALongMicrobatch_HaveFewSizes) {
  FewSamples source(3, 4096);
  std::set<int64_t> sizes;
  for (source.counted = 0; source.counted <= 4096; source.counted += 100) {
    const model::StageInput input = LabelsOf(source, 8);
    const int64_t size = input.labels.size(0),
                  counted = input.label_weights.ne(0).sum().item<int64_t>();
    EXPECT_EQ(size % 256, 0);
    EXPECT_LT(size, std::max<int64_t>(1, counted) + 256);
    EXPECT_FALSE(input.labelled.all());
    sizes.insert(size);
  }
  EXPECT_EQ(sizes.size(), 16u) << "256 to 4,096 of 12,288";
}

// As long as a list can be, in whatever order samples come.
TEST(BatchesTest, AllRowsListed_AreHeldToTheSameLabels) {
  FewSamples source(3, 500);
  source.counted = 200;
  const model::StageInput input = LabelsOf(source, 8, {}, /*all_rows=*/true);
  const at::Tensor rows = at::arange(3 * 504, at::kLong);
  EXPECT_TRUE(at::equal(input.labelled.rows, rows));
  EXPECT_TRUE(at::equal(input.labelled.place, rows));
  EXPECT_TRUE(input.labelled.chosen.all().item<bool>());
  EXPECT_EQ(input.label_weights.sum().item<float>(), 202);
  EXPECT_EQ(input.label_weights[2 * 504 + 300].item<float>(), 1);
  EXPECT_EQ(input.labels[2 * 504 + 300].item<int64_t>(), 320);
}

TEST(BatchesTest, WhileDecoding_TheLastRowOfEachSampleIsChosen) {
  FewSamples source(3, 10);
  const plan::Plan plan = PlanOfContext(64);
  Batches batches(plan, AllPlaces(plan), source, at::kCPU, at::kFloat, 1);
  const Batches::Growth growth = {{0, {.prompt_positions = 1, .tokens = {5, 6}}},
                                  {1, {.prompt_positions = 1}},
                                  {2, {.prompt_positions = 10}}};
  batches.SetGrowth(&growth);
  std::vector<Batches::CorruptSample> corrupt;
  model::StageInput input;
  ASSERT_TRUE(batches
                  .FillDecoder({.module = 0, .loss = true}, batches.OfSamples({{0, 1, 2}}), {0, 3},
                               {}, input, corrupt)
                  .ok());
  EXPECT_TRUE(at::equal(input.labelled.rows, at::tensor({2, 10, 29}, at::kLong)));
  EXPECT_TRUE(at::equal(input.label_weights, at::zeros({3})));
}

TEST(BatchesTest, TargetThatIsNotFinite_WeighsNothingAndIsNamed) {
  FewSamples source(3, 2);
  source.broken = 1;
  const plan::Plan plan = PlanOfContext(64);
  Batches batches(plan, AllPlaces(plan), source, at::kCPU, at::kFloat, 1);
  const Microbatch microbatch = batches.OfSamples({{0, 1, 2}});
  std::vector<Batches::CorruptSample> corrupt;
  model::StageInput input;
  ASSERT_TRUE(
      batches.FillDecoder({.module = 1, .loss = true}, microbatch, {0, 3}, {}, input, corrupt)
          .ok());
  EXPECT_TRUE(at::equal(input.target_weights, at::tensor({1.0f, 0.0f, 1.0f})));
  ASSERT_THAT(corrupt, SizeIs(1));
  EXPECT_EQ(corrupt[0].sample, 1);
  EXPECT_EQ(corrupt[0].reason, "made so");
}

TEST(BatchesTest, TargetOfASampleThatIsNotValid_WeighsNothing) {
  FewSamples source(3, 2);
  const plan::Plan plan = PlanOfContext(64);
  Batches batches(plan, AllPlaces(plan), source, at::kCPU, at::kFloat, 1);
  const Microbatch microbatch = batches.OfSamples({{0, 1, 2}});
  std::vector<Batches::CorruptSample> corrupt;
  model::StageInput input;
  ASSERT_TRUE(batches
                  .FillDecoder({.module = 1, .loss = true}, microbatch, {0, 3},
                               at::tensor({0.0f, 1.0f, 1.0f}), input, corrupt)
                  .ok());
  EXPECT_TRUE(at::equal(input.target_weights, at::tensor({0.0f, 1.0f, 1.0f})));
  EXPECT_THAT(corrupt, IsEmpty());
}

// However long storage takes: a thread that hangs would show work, and one that others owe
// something need, and a rank would be ended, or an epoch.
TEST(BatchesTest, ReadThatStalls_ShowsNeitherWorkNorNeed) {
  FewSamples source(3, 2);
  std::atomic_flag stalls, goes_on;
  source.on_take = [&] {
    stalls.test_and_set();
    stalls.notify_one();
    goes_on.wait(false);
  };
  const plan::Plan plan = PlanOfContext(64);
  Batches batches(plan, AllPlaces(plan), source, at::kCPU, at::kFloat, 1);
  const Microbatch microbatch = batches.OfSamples({{0, 1, 2}});
  std::atomic<uint64_t> word = 0;
  bool worked_before = false, works_behind = false;
  std::thread trains([&] {
    const ActivityOfThread shown(&word);
    const Working working;
    worked_before = ShowsWork(word);
    std::vector<Batches::CorruptSample> corrupt;
    model::StageInput input;
    EXPECT_TRUE(
        batches.FillDecoder({.module = 0, .loss = true}, microbatch, {0, 3}, {}, input, corrupt)
            .ok());
    works_behind = ShowsWork(word);
    stalls.test_and_set();  // also where nothing was read
    stalls.notify_one();
  });
  stalls.wait(false);
  const uint64_t stalled = word;
  goes_on.test_and_set();
  goes_on.notify_one();
  trains.join();
  EXPECT_TRUE(worked_before);
  EXPECT_FALSE(ShowsWork(stalled));
  EXPECT_FALSE(ShowsNeed(stalled));
  EXPECT_TRUE(works_behind);
}

// What a rank has to compute is that of its padded sequences.
TEST(StepFlopsTest, GrowWithTheLengthOfSamplesAndTheirNumber) {
  const plan::Plan plan = PlanOfContext(64);
  FewSamples source(3, 10);
  const std::vector<plan::Place> places = plan.PlacesOf(Rank{0});
  const Batches batches(plan, places, source, at::kCPU, at::kFloat, 1);
  const std::vector<Microbatch> step = batches.OfStep(1);  // all three, so as long as the longest
  const double cost = plan::PartCost(plan, {0, 0, 0}, 1, 3 * 10, 10).total();
  EXPECT_GT(cost, 0);
  EXPECT_DOUBLE_EQ(FlopsOfStep(plan, places, batches, step), cost);
  EXPECT_DOUBLE_EQ(FlopsOfStep(plan, places, batches, {step[0], step[0]}), 2 * cost);
  EXPECT_EQ(FlopsOfStep(plan, places, batches, {}), 0);
  FewSamples shorter(3, 5);
  const Batches less(plan, places, shorter, at::kCPU, at::kFloat, 1);
  EXPECT_LT(FlopsOfStep(plan, places, less, less.OfStep(1)), cost);
}

}  // namespace
}  // namespace phalanx::train

#include "worker/train/attention_shapes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/model/patches.h"

namespace phalanx::train {
namespace {

using support::AJob;
using testing::ElementsAre;

// Samples of these lengths in turn, each with an item of the first encoder.
class SamplesOf final : public SampleSource {
 public:
  SamplesOf(int64_t size, std::vector<int32_t> lengths)
      : size_(size), lengths_(std::move(lengths)) {}
  int64_t size() const override { return size_; }
  data::SampleShape shape(int64_t sample) const override {
    data::SampleShape shape;
    shape.positions = lengths_[static_cast<size_t>(sample) % lengths_.size()];
    return shape;
  }
  absl::Span<const data::ItemRows> rows(int64_t) const override { return {&item_, 1}; }
  std::string NameOf(int64_t) const override { return "sample"; }
  void Announce(absl::Span<const int64_t>) override {}
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t) override {
    return absl::UnimplementedError("shapes are not read from samples");
  }

 private:
  const int64_t size_;
  const std::vector<int32_t> lengths_;
  const data::ItemRows item_ = {.encoder = 0, .rows = 4};
};

struct Shapes {
  std::vector<AttentionShape> vision, language;
};

Shapes ShapesOf(SampleSource& source, int64_t steps) {
  const job::JobSpec spec = AJob()
                                .Module("vision", support::ClipVision(), {.offset = 0})
                                .Module("language", support::Llama(), {.offset = 0})
                                .Edge("vision", "language")
                                .Batch(5, 3)
                                .Steps(steps);
  const plan::Plan plan = *plan::MakePlan(spec, plan::MakeCluster(1, 1), Epoch{1});
  const std::vector<plan::Place> places = plan.PlacesOf(Rank{0});
  const Batches batches(plan, places, source, at::kCPU, at::kFloat, 8);
  Shapes shapes;
  for (size_t i = 0; i < places.size(); ++i) {
    (places[i].module == plan.spec.language ? shapes.language : shapes.vision) =
        AttentionShapes(plan, batches, places, i);
  }
  return shapes;
}

TEST(AttentionShapesTest, DataOfOneLength_HasAShapeForEachNumberOfSamples) {
  SamplesOf source(40, {13});
  const Shapes shapes = ShapesOf(source, 6);
  EXPECT_THAT(shapes.language, ElementsAre(AttentionShape{3, 16}, AttentionShape{2, 16}));
  const int64_t rows = model::EncoderRows(support::ClipVision());
  EXPECT_THAT(shapes.vision, ElementsAre(AttentionShape{3, rows}, AttentionShape{2, rows}));
}

TEST(AttentionShapesTest, DataOfManyLengths_GivesThoseThatAttentionWorksLongestAt) {
  std::vector<int32_t> lengths(96, 8);
  for (int32_t i = 0; i < 32; ++i) lengths.push_back(16 + 8 * i);
  SamplesOf source(static_cast<int64_t>(lengths.size()), lengths);
  const std::vector<AttentionShape> shapes = ShapesOf(source, 1000).language;
  ASSERT_EQ(shapes.size(), kAttentionShapesMax);
  // Those that come most often are the shortest, and take least.
  EXPECT_THAT(shapes, testing::Not(testing::Contains(AttentionShape{3, 8})));
  EXPECT_GE(shapes.front().length, 248);
  EXPECT_THAT(shapes, testing::Each(testing::Field(&AttentionShape::length, testing::Ge(100))));
}

TEST(AttentionShapesTest, ShortShapesThatAreMost_ComeFirstAllTheSame) {
  std::vector<int32_t> lengths(255, 64);
  lengths.push_back(128);
  SamplesOf source(static_cast<int64_t>(lengths.size()), lengths);
  const std::vector<AttentionShape> shapes = ShapesOf(source, 1000).language;
  EXPECT_EQ(shapes.front(), (AttentionShape{3, 64}));
  EXPECT_THAT(shapes, testing::Contains(AttentionShape{3, 128}));
}

}  // namespace
}  // namespace phalanx::train

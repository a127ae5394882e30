// Module graphs: chains, unequal depths, several encoders, several consumers, and samples without
// items.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/samples.h"
#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

using job::ScheduleName;
using support::AJob;
using support::Layout;

class GraphTest : public testing::TestWithParam<NamedJob> {};
TEST_P(GraphTest, Fp64_EqualsThePlainModel) { ExpectEqualsPlain(GetParam()); }

// Modules that are not named are absent.
class Graph {
 public:
  Graph& Vision(const Layout& layout) { return Add("vision", TinyVision(), layout); }
  // A second encoder of images, with a size of its own: an image is nine rows here.
  Graph& CloseUp(const Layout& layout) {
    job::Architecture architecture = TinyVision();
    architecture.image_size = 6;
    return Add("close_up", architecture, layout);
  }
  // Under the name "vision", with an odd number of MLP blocks of which the last is not full.
  Graph& Siglip(const Layout& layout) {
    return Add("vision",
               support::SiglipVision({.hidden_size = 16,
                                      .layers = 3,
                                      .heads = 4,
                                      .mlp_size = 19,
                                      .block = 4,
                                      .image_size = 4,
                                      .patch_size = 2}),
               layout);
  }
  Graph& Audio(const Layout& layout) { return Add("audio", TinyAudio(), layout); }
  Graph& Language(const Layout& layout) {
    lanes_ = layout.dp;
    return Add("language", TinyLanguage(), layout);
  }
  Graph& Regressor(const Layout& layout) {
    Add("regressor", TinyRegressor(), layout);
    job_.spec().modules.back().loss_weight = 0.5;
    return *this;
  }
  Graph& VisionFeedsRegressor() {
    vision_feeds_regressor_ = true;
    return *this;
  }
  Graph& Schedule(ScheduleName name, int32_t chunks = 1) {
    job_.Schedule(name, chunks);
    return *this;
  }

  // `samples` a replica of the language module.
  AJob Build(int64_t samples, int64_t micro) const {
    AJob job = job_;
    if (vision_) job.Edge("vision", "language", {.projector = 20});
    if (close_up_) job.Edge("close_up", "language", {.projector = 12});
    if (audio_) job.Edge("audio", "language");
    if (regressor_) job.Edge("language", "regressor", {.projector = 16});
    if (vision_feeds_regressor_) job.Edge("vision", "regressor");
    return job.Batch(samples * lanes_, micro);
  }

 private:
  Graph& Add(const std::string& name, const job::Architecture& architecture, const Layout& layout) {
    job_.Module(name, architecture, layout);
    vision_ |= name == "vision";
    close_up_ |= name == "close_up";
    audio_ |= name == "audio";
    regressor_ |= name == "regressor";
    return *this;
  }

  AJob job_;
  bool vision_ = false, close_up_ = false, audio_ = false, regressor_ = false,
       vision_feeds_regressor_ = false;
  int32_t lanes_ = 1;
};

Layout At(Layout layout, int32_t offset) {
  layout.offset = offset;
  return layout;
}

std::vector<NamedJob> Graphs() {
  const Layout one, tp2{.tp = 2}, dp2{.dp = 2}, pp2{.pp = 2}, pp3{.pp = 3};
  const Layout tp2dp2{.tp = 2, .dp = 2}, tp2pp2{.tp = 2, .pp = 2}, pp4{.pp = 4};
  auto named = [](const std::string& name, const Graph& graph) {
    return Named(name, graph.Build(8, 2));
  };
  return {
      named("vision_tp2_dp2_to_tp2_pp2", Graph().Vision(tp2dp2).Language(tp2pp2)),
      named("vision_pp2_to_tp2_pp2", Graph().Vision(pp2).Language(tp2pp2)),
      named("audio_pp2_to_tp2_pp2", Graph().Audio(pp2).Language(tp2pp2)),
      named("vision_pp2_beside_audio_to_pp3", Graph().Vision(pp2).Audio(one).Language(pp3)),
      named("vision_beside_audio_pp2_to_pp3", Graph().Vision(dp2).Audio(pp2).Language(pp3)),
      named("vision_beside_audio_to_tp2_pp2_to_regressor_tp2",
            Graph().Vision(one).Audio(one).Language(tp2pp2).Regressor(tp2)),
      named("vision_beside_audio_to_tp2_pp2_to_regressor_dp2",
            Graph().Vision(one).Audio(one).Language(tp2pp2).Regressor(dp2)),
      named("vision_pp2_beside_audio_tp2_to_pp4", Graph().Vision(pp2).Audio(tp2).Language(pp4)),
      named("both_encoders_on_one_rank", Graph().Vision(one).Audio(At(one, 0)).Language(one)),
      named("both_encoders_tp2_pp2_on_the_same_ranks",
            Graph().Vision(tp2pp2).Audio(At(tp2pp2, 0)).Language(tp2pp2)),
      named("vision_dp2_audio_tp2_on_the_same_ranks",
            Graph().Vision(dp2).Audio(At(tp2, 0)).Language(tp2pp2)),
      named("vision_on_the_ranks_of_language_beside_audio",
            Graph().Vision(dp2).Audio(At(one, 2)).Language(At(tp2, 0))),
      named("everything_on_two_ranks", Graph()
                                           .Vision(dp2)
                                           .Audio(At(tp2, 0))
                                           .Language(At(pp2, 0))
                                           .Regressor(At(dp2, 0))
                                           .VisionFeedsRegressor()),
      named("vision_feeds_language_and_regressor",
            Graph().Vision(dp2).Language(pp2).Regressor(one).VisionFeedsRegressor()),
      named("vision_tp2_feeds_language_pp3_and_regressor_tp2_pp2",
            Graph().Vision(tp2).Language(pp3).Regressor(tp2pp2).VisionFeedsRegressor()),
      named("vision_pp2_feeds_language_dp3_and_regressor_dp2", Graph()
                                                                   .Vision({.dp = 2, .pp = 2})
                                                                   .Language({.dp = 3})
                                                                   .Regressor(dp2)
                                                                   .VisionFeedsRegressor()),
      named("vision_feeds_interleaved_language_and_regressor",
            Graph().Vision(dp2).Language(pp2).Regressor(one).VisionFeedsRegressor().Schedule(
                ScheduleName::kInterleaved, 2)),
      named("language_to_regressor_pp2", Graph().Language(dp2).Regressor(pp2)),
      named("lanes_3_to_2_to_3", Graph().Vision({.dp = 3}).Language(dp2).Regressor({.dp = 3})),
      named("lanes_2_and_3_to_1", Graph().Vision(dp2).Audio({.dp = 3}).Language(pp2)),
  };
}
INSTANTIATE_TEST_SUITE_P(Graphs, GraphTest, testing::ValuesIn(Graphs()), NameOf);

// Two encoders of images, each with its own image size: every image becomes rows of both.
std::vector<NamedJob> TwoVisions() {
  const Layout one, tp2{.tp = 2}, dp2{.dp = 2}, pp2{.pp = 2}, dp3{.dp = 3};
  auto named = [](const std::string& name, const Graph& graph) {
    return Named(name, graph.Build(8, 2));
  };
  return {
      named("on_ranks_of_their_own", Graph().Vision(one).CloseUp(one).Language(one)),
      named("on_one_rank", Graph().Vision(one).CloseUp(At(one, 0)).Language(At(one, 0))),
      named("dp2_and_tp2_to_tp2_pp2",
            Graph().Vision(dp2).CloseUp(At(tp2, 0)).Language({.tp = 2, .pp = 2})),
      named("pp2_and_dp3_beside_audio_to_dp2",
            Graph().Vision(pp2).CloseUp(dp3).Audio(one).Language(dp2)),
      named("tp2_pp2_feeding_language_and_regressor", Graph()
                                                          .Vision({.tp = 2, .pp = 2})
                                                          .CloseUp(one)
                                                          .Language(pp2)
                                                          .Regressor(tp2)
                                                          .VisionFeedsRegressor()),
  };
}
INSTANTIATE_TEST_SUITE_P(TwoVisions, GraphTest, testing::ValuesIn(TwoVisions()), NameOf);

std::vector<NamedJob> Siglips() {
  const Layout one, tp2{.tp = 2}, tp3{.tp = 3}, dp2{.dp = 2}, tp2pp2{.tp = 2, .pp = 2};
  auto named = [](const std::string& name, const Graph& graph) {
    return Named(name, graph.Build(8, 2));
  };
  return {
      named("tp2_to_pp2", Graph().Siglip(tp2).Language({.pp = 2})),
      named("tp3_to_dp2", Graph().Siglip(tp3).Language(dp2)),
      named("tp3_pp3_to_tp2_pp2", Graph().Siglip({.tp = 3, .pp = 3}).Language(tp2pp2)),
      named("tp2_dp2_beside_clip_vision_on_its_ranks",
            Graph().Siglip({.tp = 2, .dp = 2}).CloseUp(At({.dp = 4}, 0)).Language(one)),
  };
}
INSTANTIATE_TEST_SUITE_P(Siglips, GraphTest, testing::ValuesIn(Siglips()), NameOf);

// Zero to five images and zero to three sounds a sample; half of the samples are text alone, and
// with one sample a microbatch so are whole microbatches.
NamedJob Unequal(const std::string& name, const Graph& graph) {
  AJob job = graph.Build(6, 1);
  if (job.spec().schedule.name == ScheduleName::kThreePhase) job.spec().schedule.encoder_chunks = 3;
  NamedJob named = Named(name, job);
  named.data.images_max = 5;
  named.data.sounds_max = 3;
  named.data.samples = 12;
  named.data.text_only_period = 2;
  named.data.text_only_end = 1;
  return named;
}

std::vector<NamedJob> UnequalSamples() {
  const Layout one, tp2{.tp = 2}, dp2{.dp = 2}, pp2{.pp = 2}, dp3{.dp = 3};
  const Layout tp2dp2{.tp = 2, .dp = 2}, tp2pp2{.tp = 2, .pp = 2}, dp4{.dp = 4};
  return {
      Unequal("vision_to_language", Graph().Vision(one).Language(one)),
      Unequal("vision_dp3_to_dp2", Graph().Vision(dp3).Language(dp2)),
      Unequal("vision_dp2_to_dp3", Graph().Vision(dp2).Language(dp3)),
      Unequal("vision_tp2_dp2_to_tp2_pp2", Graph().Vision(tp2dp2).Language(tp2pp2)),
      Unequal("vision_pp2_beside_audio_to_pp3", Graph().Vision(pp2).Audio(one).Language({.pp = 3})),
      Unequal("vision_dp4_on_the_ranks_of_tp2_pp2", Graph().Vision(dp4).Language(At(tp2pp2, 0))),
      Unequal("three_phase_vision_dp4_on_the_ranks_of_tp2_pp2",
              Graph().Vision(dp4).Language(At(tp2pp2, 0)).Schedule(ScheduleName::kThreePhase)),
      Unequal("three_phase_vision_and_audio_on_the_ranks_of_dp2_pp2",
              Graph()
                  .Vision(tp2dp2)
                  .Audio(At(dp4, 0))
                  .Language({.dp = 2, .pp = 2, .order = kPipelineInsideData, .offset = 0})
                  .Schedule(ScheduleName::kThreePhase)),
      Unequal("zero_bubble_v_vision_dp2_audio_tp2_to_pp2",
              Graph().Vision(dp2).Audio(tp2).Language(pp2).Schedule(ScheduleName::kZeroBubbleV)),
      Unequal("vision_feeds_language_and_regressor",
              Graph().Vision(dp2).Language(pp2).Regressor(tp2).VisionFeedsRegressor()),
  };
}
INSTANTIATE_TEST_SUITE_P(UnequalSamples, GraphTest, testing::ValuesIn(UnequalSamples()), NameOf);

// What the cases above are meant to hold.
TEST(UnequalSamplesTest, EveryCase_HasMicrobatchesWithManyImagesAndWithNone) {
  for (const NamedJob& job : UnequalSamples()) {
    SCOPED_TRACE(job.name);
    const auto plan = plan::MakePlan(job.spec, plan::MakeCluster(1, job.spec.World()), Epoch{1});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto source = MakeData(job.data);
    int64_t without = 0, images_most = 0;
    for (int64_t step = 0; step < 3; ++step) {
      for (int64_t m = 0; m < plan->microbatches; ++m) {
        int64_t items = 0;
        for (int64_t position : plan::SamplesOfMicrobatch(*plan, m).samples) {
          const data::SampleShape shape = source->shape(plan::SampleAt(
              job.spec.seed, source->size(), step * job.spec.batch.global + position));
          items += shape.images + shape.sounds;
          images_most = std::max<int64_t>(images_most, shape.images);
        }
        without += items == 0;
      }
    }
    EXPECT_GE(without, 1);
    EXPECT_EQ(images_most, 5);
  }
}

}  // namespace
}  // namespace phalanx::oracle

// What layers keep between their passes, beside what plans say of it.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "core/plan/activation_estimate.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/model/rig.h"

namespace phalanx::model {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

// Bytes that layers keep, of each storage once, without single numbers of a row. A member that is
// added does not compile here.
int64_t BytesKept(const std::vector<LayerState>& states) {
  std::map<const void*, size_t> storages;
  for (const LayerState& s : states) {
    const auto& [input, middle, attention_input, mlp_input, attention_rows, mlp_rows, qkv, context,
                 mlp_hidden, mlp_active, mean1, rstd1, mean2, rstd2, attention] = s;
    const auto& [query, key, value, output, log_sum, seed, offset, length] = attention;
    for (const at::Tensor& tensor :
         {input, middle, attention_input.rows, mlp_input.rows, attention_rows.rows, mlp_rows.rows,
          qkv, context.rows, mlp_hidden, mlp_active.rows, query, key, value, output}) {
      if (tensor.defined()) storages[tensor.storage().data()] = tensor.storage().nbytes();
    }
  }
  size_t bytes = 0;
  for (const auto& [storage, size] : storages) bytes += size;
  return static_cast<int64_t>(bytes);
}

// Estimates are of a part of so many layers, of 32 rows of a decoder or 4 of an encoder.
int64_t EstimateOf(bool decoder, int32_t layers, job::Recompute recompute, double labelled_share) {
  AJob job;
  const support::Layout layout{.recompute = recompute};
  if (!decoder) job.Module("vision", ClipVision({.layers = layers}), layout);
  job.Module("language", Llama({.layers = layers}), decoder ? layout : support::Layout())
      .Batch(1, 1)
      .Compute(job::Precision::kFp64);
  if (!decoder) job.Edge("vision", "language");
  const plan::Plan plan = *plan::MakePlan(job, plan::MakeCluster(1, decoder ? 1 : 2), Epoch{1});
  return plan::ActivationsOfPart(plan, {.module = 0}, 0,
                                 {.items = 1, .labelled_share = labelled_share})
      .kept;
}

TEST(LayerMemoryTest, WhatLayersKeep_IsWhatThePlansEstimateSays) {
  for (const bool decoder : {true, false}) {
    for (const job::Recompute recompute :
         {job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {
      for (const bool labelled : {false, true}) {
        if (labelled && !decoder) continue;
        SCOPED_TRACE(testing::Message()
                     << decoder << " " << static_cast<int>(recompute) << " " << labelled);
        Rig rig(decoder ? AJob().Module("language", Llama({.layers = 2})).Build()
                        : AJob()
                              .Module("vision", ClipVision({.layers = 2}))
                              .Module("language", Llama())
                              .Edge("vision", "language")
                              .Build(),
                0);
        LayerContext context = rig.context();
        context.recompute = recompute;
        LayerStack layers;
        for (const int32_t layer : {0, 1}) {
          layers.Add(decoder ? MakeDecoderLayer(context, rig.table(), layer)
                             : MakeEncoderLayer(context, rig.table(), layer));
        }
        SequenceShape shape{1, decoder ? 32 : 4};
        if (decoder) {  // the rows with a label are taken, be it all
          const int64_t every = labelled ? 4 : 1;
          shape.leaving.rows = at::arange(0, 32, every);
          shape.leaving.place = at::arange(32).div(every, "floor");
          shape.leaving.chosen = at::arange(32).remainder(every).eq(0);
        }
        std::vector<LayerState> states;
        LayerRows hidden = at::randn({shape.rows(), 32}, at::kDouble);
        ASSERT_TRUE(layers.Forward(shape, &states, &hidden).ok());
        // Ends of an encoder keep something, too.
        const int64_t estimate =
            decoder ? EstimateOf(true, 2, recompute, labelled ? 0.25 : 1)
                    : EstimateOf(false, 3, recompute, 1) - EstimateOf(false, 1, recompute, 1);
        EXPECT_EQ(BytesKept(states), estimate);
      }
    }
  }
}

// Of 8 heads rank 1 of 3 has one of the first KV head and two of the second, so keys and values are
// repeated for each.
TEST(LayerMemoryTest, WhatLayersOfUnevenHeadsKeep_IsWhatThePlansEstimateSays) {
  for (const job::Recompute recompute :
       {job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {
    const auto job_of = [&](int32_t layers) {
      return AJob()
          .Module("language",
                  Llama({.hidden_size = 64, .layers = layers, .heads = 8, .kv_heads = 2}),
                  {.tp = 3, .recompute = recompute})
          .Batch(1, 1)
          .Compute(job::Precision::kFp64)
          .Build();
    };
    const plan::Place place{.module = 0, .tp = 1, .width = 3};
    Rig rig(job_of(2), place);
    LayerContext context = rig.context();
    ASSERT_FALSE(context.heads.regular);
    context.recompute = recompute;
    LayerStack layers;
    for (const int32_t layer : {0, 1}) layers.Add(MakeDecoderLayer(context, rig.table(), layer));
    std::vector<LayerState> states;
    LayerRows hidden = at::randn({32, 64}, at::kDouble);
    ASSERT_TRUE(layers.Forward({1, 32}, &states, &hidden).ok());
    const auto estimate = [&](int32_t count) {
      const plan::Plan plan = *plan::MakePlan(job_of(count), plan::MakeCluster(1, 3), Epoch{1});
      return plan::ActivationsOfPart(plan, place, 0, {}).kept;
    };
    EXPECT_EQ(BytesKept(states), estimate(3) - estimate(1)) << static_cast<int>(recompute);
  }
}

}  // namespace
}  // namespace phalanx::model

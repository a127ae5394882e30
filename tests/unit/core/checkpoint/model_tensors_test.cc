#include "core/checkpoint/model_tensors.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/parameters.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::checkpoint {
namespace {

using support::AJob;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// By name: rows, columns, whether it trains.
using Tensors = std::map<std::string, std::tuple<int64_t, int64_t, bool>>;

Tensors ByName(const std::vector<ModelTensor>& tensors) {
  Tensors named;
  for (const ModelTensor& tensor : tensors) {
    const std::string name = absl::StrCat(tensor.module, "/", tensor.tensor);
    EXPECT_EQ(named.count(name), 0u) << name << " stands twice";
    named[name] = {tensor.rows, tensor.cols, tensor.trains};
  }
  return named;
}

// What the ranks of a layout have, all together.
Tensors OfTheRanks(const plan::Plan& plan) {
  Tensors named;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        const plan::StageParameters parameters = plan::ParametersOf(plan, place, chunk);
        for (const plan::LocalMatrix& matrix : parameters.matrices) {
          for (const plan::Piece& piece : matrix.pieces) {
            const auto& logical = parameters.logical[static_cast<size_t>(piece.logical)];
            named[absl::StrCat(plan.module_spec(place.module).name, "/", logical.name)] = {
                logical.rows, logical.cols, matrix.trains};
          }
        }
      }
    }
  }
  return named;
}

std::vector<job::JobSpec> Jobs() {
  return {
      AJob()
          .Module("vision", support::ClipVision(), {.tp = 2, .frozen = true})
          .Module("sound", support::Whisper(), {.dp = 2})
          .Module("language", support::Llama({.layers = 4, .tied_head = true}), {.tp = 3, .pp = 2})
          .Edge("vision", "language", {.projector = 48})
          .Edge("sound", "language", {.projector = 20, .frozen = true})
          .Batch(8, 2)
          .Schedule(job::ScheduleName::kInterleaved, 2),
      AJob()
          .Module("vision", support::SiglipVision({.layers = 2}), {.pp = 2})
          .Module("language", support::Llama({.layers = 2, .vocabulary = 50}),
                  {.tp = 2, .dp = 2, .frozen = true})
          .Module("actions", support::Regressor(), {.tp = 2})
          .Module("more", support::Regressor(), {})
          .Edge("vision", "language", {.projector = 48})
          .Edge("language", "actions")
          .Edge("language", "more", {.projector = 24})
          .Batch(8, 2),
  };
}

plan::Plan PlanOf(const job::JobSpec& spec) {
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(ModelTensorsTest, TensorsOfAJob_AreThoseOfItsRanks) {
  for (const job::JobSpec& spec : Jobs())
    EXPECT_EQ(ByName(TensorsOf(spec)), OfTheRanks(PlanOf(spec)));
}

TEST(ModelTensorsTest, ManifestsModel_HasTheTensorsOfItsJob) {
  for (const job::JobSpec& spec : Jobs()) {
    const auto tensors = TensorsOf(ModelOf(spec), 1'000'000);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_EQ(ByName(*tensors), ByName(TensorsOf(spec)));
    for (const ModelTensor& tensor : *tensors)
      EXPECT_EQ(tensor.required, tensor.tensor != "predict.weight");
  }
}

// An edge without a projector stands in no manifest: there the module may predict or not.
TEST(ModelTensorsTest, RegressorThatFeedsAnother_DoesNotPredict) {
  const job::JobSpec spec = AJob()
                                .Module("language", support::Llama())
                                .Module("first", support::Regressor())
                                .Module("second", support::Regressor())
                                .Edge("language", "first")
                                .Edge("first", "second");
  const Tensors exact = ByName(TensorsOf(spec));
  EXPECT_EQ(exact.count("first/predict.weight"), 0u);
  EXPECT_EQ(exact.count("second/predict.weight"), 1u);
  EXPECT_EQ(exact, OfTheRanks(PlanOf(spec)));
  EXPECT_EQ(ByName(*TensorsOf(ModelOf(spec), 1'000'000)).count("first/predict.weight"), 1u);
}

class NoModelTest : public testing::Test {
 protected:
  std::string Refusal(const std::function<void(Model&)>& change, int64_t entries = 1000) {
    Model model = ModelOf(Jobs()[0]);
    change(model);
    const auto tensors = TensorsOf(model, entries);
    EXPECT_TRUE(absl::IsInvalidArgument(tensors.status())) << tensors.status();
    return std::string(tensors.status().message());
  }
  // Of the language module.
  std::string Refusal(const std::string& field, const std::string& value) {
    return Refusal([&](Model& model) {
      for (auto& [name, written] : model.modules[2].architecture) {
        if (name == field) written = value;
      }
    });
  }
};

TEST_F(NoModelTest, WhatIsNoModel_IsRefusedByPath) {
  EXPECT_EQ(Refusal("layers", "0"),
            "modules[2].architecture.layers: 0: must be an integer from 1 to 4096");
  EXPECT_THAT(Refusal("vocabulary", "-1"), HasSubstr("modules[2].architecture.vocabulary: -1: "));
  EXPECT_THAT(Refusal("hidden_size", "9223372036854775807"), HasSubstr("hidden_size: 92233720"));
  EXPECT_THAT(Refusal("family", "llama2"), HasSubstr("did you mean llama?"));
  EXPECT_THAT(Refusal("kv_heads", "3"), HasSubstr("must divide heads"));
  EXPECT_THAT(Refusal([](Model& model) { model.modules[1].architecture.clear(); }),
              HasSubstr("modules[1].architecture"));
  EXPECT_THAT(Refusal([](Model& model) { model.projectors[1].hidden_size = int64_t{1} << 62; }),
              HasSubstr("projectors[1].hidden_size: 4611686018427387904: "));
}

// As in a job file, what is not written follows from the rest.
TEST(ModelTensorsTest, FieldsThatMayBeLeftOut_AreDerived) {
  const job::JobSpec spec =
      AJob().Module("language", support::Llama({.hidden_size = 32, .heads = 4, .kv_heads = 4}));
  Model model = ModelOf(spec);
  auto& architecture = model.modules[0].architecture;
  const size_t all = architecture.size();
  std::erase_if(architecture, [](const auto& field) {
    return field.first == "kv_heads" || field.first == "head_size";
  });
  ASSERT_EQ(architecture.size(), all - 2);
  const auto tensors = TensorsOf(model, 1000);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(ByName(*tensors), ByName(TensorsOf(spec)));
}

// Whatever it asks for, it is told quickly and in little memory.
TEST_F(NoModelTest, MoreLayersThanEntries_AreRefusedBeforeTheyAreCounted) {
  EXPECT_EQ(Refusal("layers", "4096"),
            "module language: the model has 4096 layers, and the files have 1000 entries");
  Model model = ModelOf(AJob().Module("language", support::Llama()));
  for (auto& [name, value] : model.modules[0].architecture) {
    if (name == "heads" || name == "kv_heads") value = "65536";
    if (name == "head_size") value = "2";
    if (name == "mlp_size") value = "16777216";
    if (name == "block") value = "1";
    if (name == "layers") value = "4096";
  }
  const auto tensors = TensorsOf(model, 1'000'000);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_GT(tensors->size(), 4096u);
}

}  // namespace
}  // namespace phalanx::checkpoint

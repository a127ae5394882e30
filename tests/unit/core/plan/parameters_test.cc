#include "core/plan/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::Regressor;
using support::SiglipVision;
using support::Whisper;

Plan LlamaPlan(const support::LlamaShape& shape, const support::Layout& layout) {
  return MustPlan(AJob().Module("language", Llama(shape), layout));
}

std::vector<std::string> Roles(const StageParameters& parameters) {
  std::vector<std::string> roles;
  for (const LocalMatrix& matrix : parameters.matrices) {
    roles.push_back(std::string(RoleName(matrix.role)));
    if (matrix.layer >= 0) roles.back() += std::to_string(matrix.layer);
  }
  return roles;
}

// Storage rules that hold for any list of parameters.
void ExpectSoundStorage(const StageParameters& parameters) {
  int64_t end = 0;
  size_t next_matrix = 0;
  for (const Bucket& bucket : parameters.buckets) {
    EXPECT_EQ(bucket.offset, end);
    EXPECT_EQ(bucket.elements % kBucketAlignment, 0);
    EXPECT_EQ(static_cast<size_t>(bucket.first_matrix), next_matrix);
    bool vectors = false;
    int64_t used = bucket.offset;
    for (int32_t i = 0; i < bucket.matrices; ++i, ++next_matrix) {
      const LocalMatrix& matrix = parameters.matrices[next_matrix];
      EXPECT_GE(matrix.offset, used) << RoleName(matrix.role);
      EXPECT_EQ(matrix.offset % kMatrixAlignment, 0);
      EXPECT_FALSE(vectors && matrix.cols > 1)
          << "matrices come before vectors: " << RoleName(matrix.role);
      vectors = vectors || matrix.cols == 1;
      used = matrix.offset + matrix.rows * matrix.cols;
    }
    end = bucket.offset + bucket.elements;
    EXPECT_LE(used, end);
  }
  EXPECT_EQ(next_matrix, parameters.matrices.size());
  EXPECT_EQ(end, parameters.elements);
  for (const LocalMatrix& matrix : parameters.matrices) {
    std::vector<int> covered(static_cast<size_t>(matrix.rows), 0);
    for (const Piece& piece : matrix.pieces) {
      const LogicalTensor& tensor = parameters.logical[static_cast<size_t>(piece.logical)];
      EXPECT_EQ(matrix.cols, matrix.transposed ? tensor.rows : tensor.cols) << tensor.name;
      EXPECT_LE(piece.logical_row + piece.rows, matrix.transposed ? tensor.cols : tensor.rows)
          << tensor.name;
      ASSERT_LE(piece.local_row + piece.rows, matrix.rows) << RoleName(matrix.role);
      for (int64_t r = 0; r < piece.rows; ++r) ++covered[static_cast<size_t>(piece.local_row + r)];
    }
    EXPECT_LE(*std::max_element(covered.begin(), covered.end()), 1)
        << RoleName(matrix.role) << ": pieces overlap";
  }
}

struct Coverage {
  int holders = 0, primaries = 0;
  std::set<Holding> holdings;
  std::set<int> told;  // holders by the pieces
};

// How often each element of each logical tensor of a module occurs over one replica.
std::map<std::string, std::vector<Coverage>> CoverageOf(const Plan& plan, int32_t module,
                                                        int32_t dp) {
  std::map<std::string, std::vector<Coverage>> coverage;
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  for (int32_t pp = 0; pp < layout.pp(); ++pp) {
    for (Rank rank : plan.TensorGroup(module, dp, pp)) {
      for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
        const StageParameters parameters = ParametersOf(plan, *plan.PlaceOf(rank, module), chunk);
        ExpectSoundStorage(parameters);
        for (const LocalMatrix& matrix : parameters.matrices) {
          for (const Piece& piece : matrix.pieces) {
            const LogicalTensor& tensor = parameters.logical[static_cast<size_t>(piece.logical)];
            auto& elements = coverage[tensor.name];
            elements.resize(static_cast<size_t>(tensor.rows * tensor.cols));
            for (int64_t r = piece.logical_row; r < piece.logical_row + piece.rows; ++r) {
              for (int64_t c = 0; c < matrix.cols; ++c) {
                Coverage& element = elements[static_cast<size_t>(
                    matrix.transposed ? c * tensor.cols + r : r * tensor.cols + c)];
                ++element.holders;
                element.primaries += piece.primary ? 1 : 0;
                element.holdings.insert(piece.holding);
                element.told.insert(piece.holders);
              }
            }
          }
        }
      }
    }
  }
  return coverage;
}

int64_t ExpectCovered(const Plan& plan, int32_t module, int32_t dp = 0) {
  int64_t elements = 0;
  for (const auto& [name, coverage] : CoverageOf(plan, module, dp)) {
    for (const Coverage& element : coverage) {
      EXPECT_EQ(element.primaries, 1) << name;
      EXPECT_EQ(element.holdings.size(), 1u) << name << ": holders agree on how they hold";
      EXPECT_EQ(element.holders == 1, element.holdings.contains(Holding::kExclusive)) << name;
      // Of the two ends of a tied embedding each is in a tensor group of its own.
      const bool tied = element.holdings.contains(Holding::kTied);
      EXPECT_THAT(element.told, testing::ElementsAre(tied ? 1 : element.holders)) << name;
      if (testing::Test::HasFailure()) return 0;
    }
    elements += static_cast<int64_t>(coverage.size());
  }
  return elements;
}

int64_t LlamaElements(const job::Architecture& a) {
  const int64_t q = a.heads * a.head_size, kv = a.kv_heads * a.head_size, h = a.hidden_size;
  return a.layers * (h * (2 * q + 2 * kv) + 3 * h * a.mlp_size + 2 * h) + h +
         (a.tied_head ? 1 : 2) * a.vocabulary * h;
}

TEST(ParametersTest, Llama_OfEveryWidthAndDepth_CoversEveryElementOnce) {
  for (int32_t kv_heads : {1, 2, 8}) {
    for (bool tied : {false, true}) {
      // Neither 62 MLP columns nor 93 words fill their last block.
      const support::LlamaShape shape{
          .layers = 3, .kv_heads = kv_heads, .mlp_size = 62, .vocabulary = 93, .tied_head = tied};
      for (int32_t tp = 1; tp <= 8; ++tp) {
        for (int32_t pp = 1; pp <= 3; ++pp) {
          const Plan plan = LlamaPlan(shape, {.tp = tp, .pp = pp});
          EXPECT_EQ(ExpectCovered(plan, 0), LlamaElements(Llama(shape)))
              << "tp " << tp << " pp " << pp << " kv " << kv_heads << " tied " << tied;
        }
      }
    }
  }
}

TEST(ParametersTest, ClipVisionWithProjectors_OfEveryWidth_CoversEveryElementOnce) {
  for (int32_t tp = 1; tp <= 4; ++tp) {
    for (int32_t pp = 1; pp <= 2; ++pp) {
      const Plan plan =
          MustPlan(AJob()
                       .Module("vision", ClipVision({.mlp_size = 60}), {.tp = tp, .pp = pp})
                       .Module("language", Llama({.hidden_size = 64}))
                       .Module("second", Llama({.hidden_size = 64}))
                       .Edge("vision", "language", {.projector = 44})
                       .Edge("vision", "second", {.projector = 48}));
      const int64_t h = 32, mlp = 60;
      const int64_t layer = 4 * (h * h + h) + 2 * h * mlp + mlp + h + 4 * h;
      const int64_t ends = 2 * h + 5 * h + h + h * 3 * 16;
      const int64_t projectors = 44 * h + 44 + 64 * 44 + 64 + 48 * h + 48 + 64 * 48 + 64;
      EXPECT_EQ(ExpectCovered(plan, 0), 2 * layer + ends + projectors);
    }
  }
}

TEST(ParametersTest, Whisper_OfEveryWidth_CoversEveryElementOnce) {
  for (int32_t tp = 1; tp <= 4; ++tp) {
    for (int32_t pp = 1; pp <= 2; ++pp) {
      const Plan plan =
          MustPlan(AJob()
                       .Module("audio", Whisper({.mlp_size = 60}), {.tp = tp, .pp = pp})
                       .Module("language", Llama())
                       .Edge("audio", "language"));
      const int64_t h = 32, mlp = 60;
      const int64_t layer = 4 * h * h + 3 * h + 2 * h * mlp + mlp + h + 4 * h;  // keys have no bias
      const int64_t ends = 3 * 5 * h + h + 3 * h * h + h + 2 * h;
      EXPECT_EQ(ExpectCovered(plan, 0), 2 * layer + ends);
    }
  }
}

TEST(ParametersTest, Regressor_WithAndWithoutLoss_CoversEveryElementOnce) {
  const Plan plan = MustPlan(AJob()
                                 .Module("language", Llama())
                                 .Module("middle", Regressor(), {.tp = 3, .pp = 2})
                                 .Module("last", Regressor(), {.tp = 2})
                                 .Edge("language", "middle")
                                 .Edge("middle", "last", {.projector = 40}));
  const int64_t layers = 4 * (32 * (2 * 32 + 2 * 8) + 3 * 32 * 64 + 2 * 32) + 32;
  const int64_t projector = 2 * 32 * 40 + 40 + 32;
  EXPECT_EQ(ExpectCovered(plan, 1), layers + projector);
  EXPECT_EQ(ExpectCovered(plan, 2), layers + 32 * 32);
}

TEST(ParametersTest, DamagedTables_EveryReplicaCoversEveryElementOnce) {
  const support::LlamaShape shape{.layers = 2, .tied_head = true};
  const job::JobSpec spec =
      AJob().Module("language", Llama(shape), {.tp = 4, .dp = 3, .pp = 2}).Batch(24, 2);
  ForEachDamaged(spec, [&](const Plan& plan) {
    const ReplicaTable& replicas = plan.replicas(0);
    for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
      if (!replicas.Present(dp)) continue;
      EXPECT_EQ(ExpectCovered(plan, 0, dp), LlamaElements(Llama(shape)));
    }
    ForEachPlace(plan, [&](Rank, const Place& place) {
      EXPECT_EQ(ParametersOf(plan, place).replicas, replicas.present_replicas());
    });
  });
}

TEST(ParametersTest, Trains_OfFrozenModulesAndProjectors_IsFalse) {
  const auto trained = [](bool vision_frozen, bool projector_frozen) {
    const Plan plan =
        MustPlan(AJob()
                     .Module("vision", ClipVision(), {.frozen = vision_frozen})
                     .Module("language", Llama())
                     .Edge("vision", "language", {.projector = 40, .frozen = projector_frozen}));
    const StageParameters parameters = ParametersOf(plan, {.module = 0});
    EXPECT_EQ(parameters.Find(MatrixRole::kQkv, 0)->trains, !vision_frozen);
    EXPECT_EQ(parameters.Find(MatrixRole::kPatch)->trains, !vision_frozen);
    EXPECT_EQ(parameters.Find(MatrixRole::kProjectorUp, -1, 0)->trains, !projector_frozen);
    return parameters.TrainedElements();
  };
  const int64_t projector = 2 * 32 * 40 + 40 + 32;
  EXPECT_EQ(trained(true, true), 0);
  EXPECT_EQ(trained(true, false), projector);
  EXPECT_EQ(trained(false, false), trained(false, true) + projector);
}

// Stage 0 has both ends, in parts of its own.
TEST(ParametersTest, TiedHead_OfTwoPartsOnOneRank_HasACopyInEach) {
  const Plan plan = MustPlan(AJob()
                                 .Module("language", Llama({.tied_head = true}), {.tp = 2})
                                 .Schedule(job::ScheduleName::kInterleaved, 2));
  const StageParameters first = ParametersOf(plan, {.module = 0, .width = 2}, 0);
  const StageParameters last = ParametersOf(plan, {.module = 0, .width = 2}, 1);
  EXPECT_EQ(first.Find(MatrixRole::kHead), nullptr);
  EXPECT_EQ(last.Find(MatrixRole::kEmbedding), nullptr);
  EXPECT_EQ(first.Find(MatrixRole::kEmbedding)->pieces[0].holding, Holding::kTied);
  EXPECT_EQ(last.Find(MatrixRole::kHead)->pieces[0].holding, Holding::kTied);
  EXPECT_EQ(ExpectCovered(plan, 0), LlamaElements(Llama({.tied_head = true})));
}

TEST(ParametersTest, Chunks_OfInterleavedStages_CoverEveryElementOnce) {
  const Plan plan = MustPlan(AJob()
                                 .Module("language", Llama({.layers = 6}), {.tp = 2, .pp = 3})
                                 .Schedule(job::ScheduleName::kInterleaved, 2));
  EXPECT_EQ(ExpectCovered(plan, 0), LlamaElements(Llama({.layers = 6})));
}

TEST(ParametersTest, Storage_OfALastStage_IsInReverseLayerOrder) {
  const Plan plan = LlamaPlan({.layers = 2}, {.pp = 1});
  const StageParameters parameters = ParametersOf(plan, {.module = 0});
  EXPECT_THAT(Roles(parameters),
              testing::ElementsAre("head", "down1", "gate_up1", "o1", "qkv1", "down0", "gate_up0",
                                   "o0", "qkv0", "embedding", "final_norm", "norm21", "norm11",
                                   "norm20", "norm10"));
}

TEST(ParametersTest, Storage_OfALargeStage_IsCutIntoBuckets) {
  const Plan plan = LlamaPlan({.hidden_size = 2048,
                               .layers = 4,
                               .heads = 32,
                               .kv_heads = 8,
                               .mlp_size = 8192,
                               .block = 128,
                               .vocabulary = 128256},
                              {.tp = 2, .dp = 3, .pp = 2});
  const StageParameters parameters = ParametersOf(plan, {.module = 0, .width = 2});
  EXPECT_EQ(parameters.replicas, 3);
  ASSERT_GT(parameters.buckets.size(), 2u);
  for (const Bucket& bucket : parameters.buckets) {
    EXPECT_EQ(bucket.elements % (128 * 3), 0);
    EXPECT_TRUE(bucket.matrices == 1 || bucket.elements <= kBucketElements + 128 * 3);
  }
  EXPECT_EQ(parameters.matrices.back().role, MatrixRole::kEmbedding);
  EXPECT_EQ(parameters.buckets.back().matrices, 1) << "larger than a bucket, so alone in one";
}

// Widths 4 to 1 of heads, blocks and words that most of them do not divide.
TEST(ParametersTest, Buckets_OfUnequalWidths_HoldTheSameMatrices) {
  const job::JobSpec spec = AJob()
                                .Module("language",
                                        Llama({.hidden_size = 2048,
                                               .layers = 6,
                                               .heads = 32,
                                               .kv_heads = 8,
                                               .mlp_size = 8200,
                                               .block = 128,
                                               .vocabulary = 50300}),
                                        {.tp = 4, .dp = 3})
                                .Batch(24, 2);
  const auto first_matrices = [](const StageParameters& parameters) {
    std::vector<int32_t> firsts;
    for (const Bucket& bucket : parameters.buckets) firsts.push_back(bucket.first_matrix);
    return firsts;
  };
  const Plan healthy = MustPlan(spec);
  const std::vector<int32_t> expected =
      first_matrices(ParametersOf(healthy, {.module = 0, .width = 4}));
  EXPECT_GT(expected.size(), 3u);
  ForEachDamaged(spec, [&](const Plan& plan) {
    const bool even = plan.replicas(0).EqualWidths(0);
    ForEachPlace(plan, [&](Rank, const Place& place) {
      const StageParameters parameters = ParametersOf(plan, place);
      EXPECT_EQ(first_matrices(parameters), expected);
      for (const Bucket& bucket : parameters.buckets)
        EXPECT_EQ(bucket.elements % (kBucketAlignment * (even ? parameters.replicas : 1)), 0);
    });
  });
}

TEST(ParametersTest, Qkv_OfSharedKvHeads_MarksThemPartialWithOnePrimary) {
  const Plan plan = LlamaPlan({}, {.tp = 3});  // 8 query heads, 2 KV heads, head size 4
  const auto qkv = [&plan](int32_t tp) {
    return *ParametersOf(plan, {.module = 0, .tp = tp, .width = 3}).Find(MatrixRole::kQkv, 0);
  };
  EXPECT_EQ(qkv(0).rows, (3 + 2 * 1) * 4);
  const LocalMatrix middle = qkv(1);
  EXPECT_EQ(middle.rows, (3 + 2 * 2) * 4);
  ASSERT_EQ(middle.pieces.size(), 5u);  // q, two k, two v
  const Piece& k0 = middle.pieces[1];
  const Piece& k1 = middle.pieces[2];
  EXPECT_EQ(k0.holding, Holding::kPartial);
  EXPECT_FALSE(k0.primary);
  EXPECT_TRUE(k1.primary);
  EXPECT_EQ(k1.local_row, 3 * 4 + 4);
  EXPECT_EQ(k1.logical_row, 4);
}

TEST(ParametersTest, GateUp_OfPaddedLastBlock_HasFullBlocksAndRealPieces) {
  const Plan plan =
      LlamaPlan({.mlp_size = 60}, {.tp = 2});  // 8 blocks of 8, the last with 4 columns
  const StageParameters parameters = ParametersOf(plan, {.module = 0, .tp = 1, .width = 2});
  const LocalMatrix& gate_up = *parameters.Find(MatrixRole::kGateUp, 0);
  EXPECT_EQ(gate_up.rows, 2 * 8 * 4);
  ASSERT_EQ(gate_up.pieces.size(), 8u);
  EXPECT_EQ(gate_up.pieces[7].rows, 4);
  EXPECT_EQ(gate_up.pieces[7].local_row, 2 * 8 * 3 + 8);
  EXPECT_EQ(gate_up.pieces[7].logical_row, 56);
  const LocalMatrix& down = *parameters.Find(MatrixRole::kDown, 0);
  EXPECT_TRUE(down.transposed);
  EXPECT_EQ(down.rows, 32);
  EXPECT_EQ(down.cols, 32);  // hidden size
  EXPECT_EQ(down.pieces[0].rows, 28);
  EXPECT_EQ(down.pieces[0].logical_row, 32);
}

TEST(ParametersTest, TiedHead_WithOneStage_IsTheEmbeddingItself) {
  const Plan plan = LlamaPlan({.tied_head = true}, {.tp = 2});
  const StageParameters parameters = ParametersOf(plan, {.module = 0, .width = 2});
  EXPECT_EQ(parameters.Find(MatrixRole::kHead), nullptr);
  EXPECT_EQ(parameters.Find(MatrixRole::kEmbedding)->pieces[0].holding, Holding::kExclusive);
}

TEST(ParametersTest, TiedHead_OverStages_IsOneTensorHeldInPartAtBothEnds) {
  const Plan plan = LlamaPlan({.tied_head = true}, {.tp = 2, .pp = 2});
  const StageParameters first = ParametersOf(plan, {.module = 0, .width = 2});
  const StageParameters last = ParametersOf(plan, {.module = 0, .pp = 1, .width = 2});
  const Piece& embedding = first.Find(MatrixRole::kEmbedding)->pieces[0];
  const Piece& head = last.Find(MatrixRole::kHead)->pieces[0];
  EXPECT_EQ(first.logical[static_cast<size_t>(embedding.logical)].name,
            "model.embed_tokens.weight");
  EXPECT_EQ(last.logical[static_cast<size_t>(head.logical)].name, "model.embed_tokens.weight");
  EXPECT_EQ(embedding.holding, Holding::kTied);
  EXPECT_EQ(head.holding, Holding::kTied);
  EXPECT_TRUE(embedding.primary);
  EXPECT_FALSE(head.primary);
}

TEST(ParametersTest, Lists_OfDataParallelRanks_AreEqual) {
  const Plan plan = LlamaPlan({}, {.tp = 3, .dp = 2, .pp = 2});
  for (int32_t pp = 0; pp < 2; ++pp) {
    for (int32_t tp = 0; tp < 3; ++tp) {
      const StageParameters a =
          ParametersOf(plan, {.module = 0, .tp = tp, .dp = 0, .pp = pp, .width = 3});
      const StageParameters b =
          ParametersOf(plan, {.module = 0, .tp = tp, .dp = 1, .pp = pp, .width = 3});
      EXPECT_EQ(Roles(a), Roles(b));
      EXPECT_EQ(a.elements, b.elements);
    }
  }
}

// The numbers of SigLIP's so400m at 384 pixels, of which its patches read 378: 27 layers, and an
// MLP that blocks of 128 do not divide.
TEST(ParametersTest, Siglip_OfItsPublishedSize_HasAsManyElementsAsItsModel) {
  const job::Architecture siglip = SiglipVision({.hidden_size = 1152,
                                                 .layers = 27,
                                                 .heads = 16,
                                                 .mlp_size = 4304,
                                                 .block = 128,
                                                 .image_size = 378,
                                                 .patch_size = 14});
  EXPECT_EQ(job::RowsOfItem(siglip), 27 * 27);
  const auto plan_of = [&siglip](int32_t tp) {
    return MustPlan(AJob()
                        .Module("vision", siglip, {.tp = tp})
                        .Module("language", Llama({.hidden_size = 1152, .context = 2048}))
                        .Edge("vision", "language"));
  };
  const StageParameters whole = ParametersOf(plan_of(1), {.module = 0});
  int64_t elements = 0;
  for (const LogicalTensor& tensor : whole.logical) elements += tensor.rows * tensor.cols;
  EXPECT_EQ(elements, 412'987'248);
  // 34 blocks over three ranks: 12, 11 and 11, and the last block has 80 columns.
  const Plan plan = plan_of(3);
  std::vector<int64_t> columns, held;
  for (int32_t tp = 0; tp < 3; ++tp) {
    const StageParameters part = ParametersOf(plan, {.module = 0, .tp = tp, .width = 3});
    columns.push_back(part.Find(MatrixRole::kDown, 26)->rows / 128);
    held.push_back(part.Find(MatrixRole::kDown, 26)->pieces.at(0).rows);
  }
  EXPECT_THAT(columns, testing::ElementsAre(12, 11, 11));
  EXPECT_THAT(held, testing::ElementsAre(12 * 128, 11 * 128, 10 * 128 + 80));
}

TEST(ParametersTest, Families_WithoutParameters_AreEmpty) {
  const Plan plan = MustPlan(AJob().Module("language", support::NoArchitecture(4), {.pp = 2}));
  EXPECT_TRUE(ParametersOf(plan, {.module = 0}).matrices.empty());
}

TEST(InitialValueTest, Values_AreAPureFunctionOfNameAndIndex) {
  const LogicalTensor tensor{.name = "a.weight", .rows = 64, .cols = 64, .init_std = 0.02};
  LogicalTensor other = tensor;
  other.name = "b.weight";
  const InitialValues values(7, "language", tensor), again(7, "language", tensor);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 64 * 64; ++i) {
    EXPECT_EQ(values(i), again(i));
    sum += values(i);
    squares += values(i) * values(i);
  }
  EXPECT_NEAR(sum / 4096, 0, 0.002);
  EXPECT_NEAR(std::sqrt(squares / 4096), 0.02, 0.001);
  EXPECT_NE(values(0), InitialValues(8, "language", tensor)(0));
  EXPECT_NE(values(0), InitialValues(7, "vision", tensor)(0));
  EXPECT_NE(values(0), InitialValues(7, "language", other)(0));
}

TEST(InitialValueTest, Values_OfNormsAndBiases_AreOneAndZero) {
  const Plan plan = MustPlan(AJob()
                                 .Module("vision", ClipVision({.layers = 2}))
                                 .Module("language", Llama())
                                 .Edge("vision", "language", {.projector = 32}));
  const StageParameters parameters = ParametersOf(plan, {.module = 0});
  const auto first = [&](MatrixRole role, int32_t layer, int32_t edge = -1) {
    const LocalMatrix& matrix = *parameters.Find(role, layer, edge);
    const LogicalTensor& tensor = parameters.logical[static_cast<size_t>(matrix.pieces[0].logical)];
    EXPECT_EQ(tensor.decay, matrix.cols > 1) << RoleName(role);
    return tensor;
  };
  EXPECT_EQ(first(MatrixRole::kNorm1, 0).init, LogicalTensor::Init::kOne);
  EXPECT_EQ(first(MatrixRole::kNorm1Bias, 0).init, LogicalTensor::Init::kZero);
  EXPECT_EQ(first(MatrixRole::kQkvBias, 1).init, LogicalTensor::Init::kZero);
  EXPECT_EQ(first(MatrixRole::kProjectorUpBias, -1, 0).init, LogicalTensor::Init::kZero);
  EXPECT_DOUBLE_EQ(first(MatrixRole::kQkv, 1).init_std, 0.02);
  EXPECT_DOUBLE_EQ(first(MatrixRole::kDown, 1).init_std, 0.01);  // 0.02 / sqrt(2 * 2 layers)
  EXPECT_EQ(InitialValues(1, "vision", first(MatrixRole::kNorm2, 1))(3), 1.0);
  EXPECT_EQ(InitialValues(1, "vision", first(MatrixRole::kOBias, 1))(3), 0.0);
}

}  // namespace
}  // namespace phalanx::plan

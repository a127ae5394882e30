#include "core/plan/memory_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "core/plan/copies.h"
#include "core/plan/cost.h"
#include "core/plan/loss.h"
#include "core/plan/parameters.h"
#include "core/plan/part_sizes.h"
#include "core/plan/reduction.h"
#include "core/plan/shares.h"
#include "core/plan/state_table.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::Whisper;

TEST(EstimateMemoryTest, OfParametersAndState_FollowsTypesAndReplicas) {
  const auto estimate = [](job::Precision precision, const support::Layout& layout) {
    const Plan plan =
        MustPlan(AJob().Module("language", Llama(), layout).Batch(8, 1).Compute(precision));
    return EstimateMemory(plan, Rank{0});
  };
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {}));
  const StageParameters parameters = ParametersOf(plan, {.module = 0});
  const int64_t elements = parameters.elements, trained = parameters.TrainedElements();
  const MemoryEstimate bf16 = estimate(job::Precision::kBf16, {});
  EXPECT_EQ(bf16.parameters, 2 * elements);
  EXPECT_EQ(bf16.gradients, 4 * elements);
  EXPECT_EQ(bf16.optimizer, 12 * trained);
  EXPECT_EQ(bf16.total(), bf16.parameters + bf16.gradients + bf16.optimizer + bf16.activations);
  EXPECT_EQ(estimate(job::Precision::kFp64, {}).optimizer, 16 * trained) << "weights are masters";
  EXPECT_NEAR(static_cast<double>(estimate(job::Precision::kBf16, {.dp = 4}).optimizer),
              static_cast<double>(bf16.optimizer) / 4 * 2,
              0.01 * static_cast<double>(bf16.optimizer))
      << "a quarter of its own, and one that it mirrors";
  EXPECT_EQ(estimate(job::Precision::kBf16, {.frozen = true}).gradients, 0);
}

TEST(EstimateMemoryTest, OfProductsInFp8_HasRoundedWeightsAndInputs) {
  const auto plan = [](job::LinearFormat linear, job::DeviceKind device,
                       const support::Layout& layout) {
    AJob job = AJob().Module("language", Llama(), layout).Batch(1, 1);
    job.spec().resources.device = device;
    return MustPlan(job.Compute(job::Precision::kBf16).Linear(linear));
  };
  const auto more = [&](job::DeviceKind device, const support::Layout& layout, auto member) {
    const Plan rounded = plan(job::LinearFormat::kFp8, device, layout);
    const Plan plain = plan(job::LinearFormat::kCompute, device, layout);
    return EstimateMemory(rounded, Rank{0}).*member - EstimateMemory(plain, Rank{0}).*member;
  };
  const job::DeviceKind gpu = job::DeviceKind::kGpu;
  // Hidden 32; queries 32, keys and values 8 columns; MLP 64.
  const int64_t weights = 4 * 32 * (32 + 2 * 8 + 32 + 3 * 64), rows = 32;
  EXPECT_EQ(more(gpu, {}, &MemoryEstimate::parameters), 2 * weights);
  EXPECT_EQ(more(gpu, {.frozen = true}, &MemoryEstimate::parameters), weights);
  // Inputs of qkv, gate and up, and down in half of two bytes; that of o in one byte more, but in
  // the last layer, which takes it from attention's output.
  EXPECT_EQ(more(gpu, {}, &MemoryEstimate::activations),
            -4 * rows * (32 + 32 + 64 - 32) - rows * 32 * 2);
  EXPECT_EQ(more(gpu, {.frozen = true}, &MemoryEstimate::activations), 0);
  // A CPU keeps values of two bytes: each weight once more, and attention's output.
  const job::DeviceKind cpu = job::DeviceKind::kCpu;
  EXPECT_EQ(more(cpu, {}, &MemoryEstimate::parameters), 2 * weights);
  EXPECT_EQ(more(cpu, {.frozen = true}, &MemoryEstimate::parameters), 2 * weights);
  EXPECT_EQ(more(cpu, {}, &MemoryEstimate::activations), 4 * rows * 32 * 2);
  EXPECT_EQ(more(cpu, {.frozen = true}, &MemoryEstimate::activations), 0);
}

// Operands that wait for the weight pass in FP8 are less than what layers keep before the input
// pass, and none of them waits as it begins.
TEST(EstimateMemoryTest, OfProductsInFp8_CountsTheMostOfBothSidesOfTheInputPass) {
  // Elements of a row that 3 layers on the second of two ranks have fewer than without FP8.
  const auto saved = [](job::ScheduleName schedule, job::Recompute recompute) {
    const auto activations = [&](job::LinearFormat linear) {
      AJob job = AJob()
                     .Module("language", Llama({.layers = 6}),
                             {.pp = 2, .layers = {3, 3}, .recompute = recompute})
                     .Batch(4, 1)
                     .Schedule(schedule);
      job.spec().resources.device = job::DeviceKind::kGpu;
      const Plan plan = MustPlan(job.Compute(job::Precision::kBf16).Linear(linear));
      return EstimateMemory(plan, Rank{1}).activations;
    };
    const int64_t rows = 32, bytes = 2;
    return (activations(job::LinearFormat::kCompute) - activations(job::LinearFormat::kFp8)) /
           (rows * bytes);
  };
  using job::Recompute;
  // All that a layer reads, and its operands, without FP8; in FP8 what it keeps, and its operands.
  const int64_t whole = 4 * 32 + 2 * (32 + 8) + 3 * 64, waiting = whole / 2;
  const int64_t kept = whole - 32 - (64 - 32) / 2, selective = 2 * 32 + 2 * (32 + 8) + 2 * 64;
  ASSERT_LT(waiting, selective);
  const job::ScheduleName together = job::ScheduleName::k1F1B;
  const int64_t taken = 32;  // of attention's output by the last layer, which is rounded
  EXPECT_EQ(saved(together, Recompute::kNone), 3 * (whole - kept) + taken);
  EXPECT_EQ(saved(together, Recompute::kSelective), 3 * whole - (2 * selective + whole));
  EXPECT_EQ(saved(together, Recompute::kFull), 3 * whole - (2 * waiting + whole));
  // Of two microbatches, and once the layer at work.
  const job::ScheduleName apart = job::ScheduleName::kZeroBubbleH1;
  EXPECT_EQ(saved(apart, Recompute::kNone), 2 * (3 * (whole - kept) + taken));
  EXPECT_EQ(saved(apart, Recompute::kSelective), 2 * 3 * (whole - selective) - (whole - selective));
  EXPECT_EQ(saved(apart, Recompute::kFull), 2 * 3 * (whole - waiting) - (whole - waiting));
}

TEST(EstimateMemoryTest, OfAllRanks_IsThatOfEach) {
  using job::MeshAxis;
  const Plan plan =
      MustPlan(AJob()
                   .Module("vision", ClipVision(),
                           {.cp = 2,
                            .dp = 4,
                            .order = {MeshAxis::kData, MeshAxis::kTensor, MeshAxis::kContext,
                                      MeshAxis::kPipeline}})
                   .Module("language", Llama(), {.tp = 3, .dp = 2, .pp = 2, .offset = 9})
                   .Module("behind", support::Regressor(), {.tp = 4, .dp = 2, .offset = 0})
                   .Edge("vision", "language", {.projector = 32})
                   .Edge("language", "behind")
                   .Batch(8, 2));
  const std::vector<MemoryEstimate> all = EstimateMemory(plan);
  ASSERT_EQ(all.size(), 21u);
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const MemoryEstimate each = EstimateMemory(plan, Rank{rank});
    EXPECT_EQ(all[static_cast<size_t>(rank)].parameters, each.parameters) << rank;
    EXPECT_EQ(all[static_cast<size_t>(rank)].optimizer, each.optimizer) << rank;
    EXPECT_EQ(all[static_cast<size_t>(rank)].total(), each.total()) << rank;
  }
  EXPECT_EQ(all[8].total(), 0) << "a rank in no module";
}

// Of what a place needs, the terms that follow from its parameters and its copies.
MemoryEstimate StateOf(const Plan& plan, Rank rank, const Place& place) {
  const StageParameters parameters = ParametersOf(plan, place);
  int64_t spread = 0, folded = 0;
  const auto add = [&](const std::vector<Copy>& copies) {
    for (const Copy& copy : copies) {
      if (plan.RankOf(copy.lead) != rank && plan.RankOf(copy.follower) != rank) continue;
      for (const CopyRun& run : copy.runs) {
        spread += run.count;
        folded += run.folds ? run.count : 0;
      }
    }
  };
  add(CopiesInSlot(plan, place, 0));
  add(TiedCopies(plan, place));
  return {.parameters = (parameters.elements + spread) * 4,
          .gradients = (parameters.trained_extent + folded) * 4,
          .optimizer = 8 * parameters.LedElements() / parameters.replicas +
                       (std::min(2, parameters.replicas) - 1) *
                           (12 * parameters.LedElements() / parameters.replicas)};
}

// What a rank of a stage of unequal widths keeps and exchanges.
HomeLoad LoadOf(const Plan& plan, const Place& place) {
  HomeLoad load;
  for (const ReducedBucket& bucket :
       ReductionOf(plan, place, 0, ParametersOf(plan, place)).buckets) {
    int64_t given = 0, taken = 0;
    for (const SharePeer& peer : bucket.peers) {
      given += peer.given;
      taken += peer.taken;
    }
    load.given = std::max(load.given, given);
    load.taken = std::max(load.taken, taken);
    for (const UnitRange& run : bucket.own) load.own += run.count;
  }
  return load;
}

int64_t MirroredOf(const Plan& plan, const PartId& part, Rank rank) {
  const StateTable table = StateTableOf(plan, part);
  int64_t elements = 0;
  for (const HomedRuler& ruler : table.rulers) {
    for (const HomedRun& run : ruler.runs) {
      const RankList& homes = table.homes[static_cast<size_t>(run.homes)];
      if (std::find(homes.begin() + 1, homes.end(), rank) != homes.end())
        elements += run.elements.count;
    }
  }
  return elements;
}

// Of three replicas two share a node: both have their mirror on the other one's, which has its own
// on one of them.
TEST(EstimateMemoryTest, OfMirrors_IsOfTheRanksThatHaveThem) {
  const job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 3}).Batch(6, 1);
  const auto plan = MakePlan(spec, {.devices = {{"a", 0}, {"a", 1}, {"b", 0}}}, Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<MemoryEstimate> all = EstimateMemory(*plan);
  // Moments at home, where weights are the masters; a mirror has masters of its own.
  const int64_t led = ParametersOf(*plan, {.module = 0, .width = 1}).LedElements();
  const int64_t own = 8 * led / 3, mirrored = 12 * led / 3;
  int64_t sum = 0;
  for (int32_t rank = 0; rank < 3; ++rank) {
    const int64_t optimizer = all[static_cast<size_t>(rank)].optimizer;
    EXPECT_NEAR(static_cast<double>(optimizer),
                static_cast<double>(own + 12 * MirroredOf(*plan, {0, 0, 0}, Rank{rank})),
                12 * 128 * 40);
    EXPECT_EQ(optimizer, EstimateMemory(*plan, Rank{rank}).optimizer);
    sum += optimizer;
  }
  EXPECT_EQ(all[2].optimizer, own + 2 * mirrored) << "of both others, and its own";
  EXPECT_EQ(sum, 3 * (own + mirrored));
}

// What is left of a replica beside a whole one has all of the state: what it leads and what it
// mirrors.
TEST(EstimateMemoryTest, OfALoneRankBesideAWholeReplica_IsOfAllState) {
  const job::JobSpec spec = AJob()
                                .Module("language", Llama(), {.tp = 2, .dp = 2})
                                .Batch(4, 1)
                                .Compute(job::Precision::kBf16);
  const Plan healthy = MustPlan(spec);
  const auto left = PlanWithout(healthy, {Rank{3}});
  ASSERT_TRUE(left.ok()) << left.status();
  int64_t state = 0;
  for (int32_t tp = 0; tp < 2; ++tp)
    state += 12 * ParametersOf(healthy, {.module = 0, .tp = tp, .width = 2}).LedElements();
  const std::vector<MemoryEstimate> all = EstimateMemory(*left);
  EXPECT_NEAR(static_cast<double>(all[2].optimizer), static_cast<double>(state),
              0.02 * static_cast<double>(state));
  EXPECT_EQ(all[2].optimizer, EstimateMemory(*left, Rank{2}).optimizer);
}

TEST(EstimateMemoryTest, OfCopies_CountsWhatIsPackedToTravel) {
  const Plan plan =
      MustPlan(AJob()
                   .Module("language", Llama({.tied_head = true}), {.tp = 3, .dp = 2, .pp = 2})
                   .Batch(4, 1));
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const Place place = *plan.PlaceOf(Rank{rank}, 0);
    const MemoryEstimate expected = StateOf(plan, Rank{rank}, place);
    EXPECT_GT(expected.gradients, ParametersOf(plan, place).trained_extent * 4) << "some fold";
    const MemoryEstimate estimate = EstimateMemory(plan, Rank{rank});
    EXPECT_EQ(estimate.parameters, expected.parameters) << rank;
    EXPECT_EQ(estimate.gradients, expected.gradients) << rank;
  }
}

TEST(EstimateMemoryTest, DamagedTables_EveryRankIsEstimatedByItsOwnWidth) {
  const job::JobSpec spec =
      AJob()
          .Module("vision", ClipVision(), {.tp = 3, .dp = 4, .pp = 2, .offset = 0})
          .Module("language", Llama({.tied_head = true}), {.tp = 4, .dp = 3, .pp = 2, .offset = 0})
          .Edge("vision", "language", {.projector = 32})
          .Batch(24, 2);
  ForEachDamaged(spec, [](const Plan& plan) {
    const std::vector<MemoryEstimate> all = EstimateMemory(plan);
    ASSERT_EQ(all.size(), static_cast<size_t>(plan.world));
    std::vector<MemoryEstimate> expected(all.size());
    // Of the replicas of one width the one with most: by module, pp, width, tp.
    std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, HomeLoad> most_of;
    ForEachPlace(plan, [&](Rank, const Place& place) {
      const HomeLoad load = LoadOf(plan, place);
      HomeLoad& most = most_of[{place.module, place.pp, place.width, place.tp}];
      most = {.own = std::max(most.own, load.own),
              .given = std::max(most.given, load.given),
              .taken = std::max(most.taken, load.taken)};
    });
    ForEachPlace(plan, [&](Rank rank, const Place& place) {
      const MemoryEstimate place_needs = StateOf(plan, rank, place);
      MemoryEstimate& sum = expected[static_cast<size_t>(rank.value)];
      sum.parameters += place_needs.parameters;
      sum.gradients += place_needs.gradients;
      if (plan.replicas(place.module).EqualWidths(place.pp)) {
        sum.optimizer += place_needs.optimizer;
      } else {
        const HomeLoad& load = most_of.at({place.module, place.pp, place.width, place.tp});
        sum.optimizer += 8 * load.own + 12 * MirroredOf(plan, {place.module, place.pp, 0}, rank);
        sum.gradients += 4 * (load.given + load.taken);
      }
      // Nobody has more to update than the rank that the part's cost is told of.
      const StageParameters parameters = ParametersOf(plan, place);
      const UpdateBytes most = UpdateCost(plan, {place.module, place.pp, 0});
      const auto replicas = static_cast<double>(parameters.replicas);
      EXPECT_LE(static_cast<double>(parameters.LedElements()) / replicas * (7 * 4 + 4),
                most.updated);
      EXPECT_LE(static_cast<double>(parameters.trained_extent) * (replicas - 1) / replicas * 4,
                most.reduced);
    });
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      const MemoryEstimate& one = all[static_cast<size_t>(rank)];
      const MemoryEstimate& needs = expected[static_cast<size_t>(rank)];
      EXPECT_EQ(one.parameters, needs.parameters) << rank;
      EXPECT_EQ(one.gradients, needs.gradients) << rank;
      EXPECT_EQ(one.optimizer, needs.optimizer) << rank;
      EXPECT_EQ(one.activations, EstimateMemory(plan, Rank{rank}).activations) << rank;
      EXPECT_EQ(one.total() == 0, plan.PlacesOf(Rank{rank}).empty()) << rank;
    }
  });
}

// Shares of more replicas take more padding.
TEST(EstimateMemoryTest, WithSizesOfOtherPlansOfTheJob_IsTheSame) {
  PartSizes sizes;
  for (const int32_t dp : {1, 6, 3, 5, 2}) {
    const Plan plan = MustPlan(AJob().Module("language", Llama(), {.dp = dp}).Batch(30, 1));
    const std::vector<MemoryEstimate> own = EstimateMemory(plan);
    const std::vector<MemoryEstimate> shared = EstimateMemory(plan, {}, sizes);
    for (size_t rank = 0; rank < own.size(); ++rank)
      EXPECT_EQ(shared[rank].total(), own[rank].total()) << dp;
  }
}

// Whatever is lost, lowered or laid out otherwise.
TEST(EstimateMemoryTest, WithLoadsOfOtherPlansOfTheJob_IsTheSame) {
  PartSizes sizes;
  int narrowed = 0;
  const auto expect_same = [&](const Plan& plan) {
    const std::vector<MemoryEstimate> own = EstimateMemory(plan);
    const std::vector<MemoryEstimate> shared = EstimateMemory(plan, {}, sizes);
    for (size_t rank = 0; rank < own.size(); ++rank) {
      EXPECT_EQ(shared[rank].optimizer, own[rank].optimizer) << rank;
      EXPECT_EQ(shared[rank].gradients, own[rank].gradients) << rank;
      EXPECT_EQ(shared[rank].total(), own[rank].total()) << rank;
      EXPECT_EQ(shared[rank].host.total(), own[rank].host.total()) << rank;
    }
  };
  for (const support::Layout& layout : {support::Layout{.tp = 3, .dp = 2},
                                        {.tp = 2, .dp = 3},
                                        {.tp = 2, .dp = 2, .pp = 2},
                                        {.tp = 2, .dp = 2, .pp = 2, .sequence = true}}) {
    AJob job = AJob().Module("language", Llama({.layers = 4}), layout).Batch(12, 2);
    const int32_t world = job.Build().World();
    for (const int32_t nodes : {1, world / 2}) {
      const Plan healthy = *MakePlan(job, MakeCluster(nodes, world / nodes), Epoch{1});
      for (const job::StateHome home : {job::StateHome::kMirror, job::StateHome::kHost}) {
        Layout lowered = healthy.layout;
        lowered.micro = 1;
        lowered.modules[0].state_home = home;
        const Plan whole = *Expand(job, std::move(lowered));
        expect_same(whole);
        for (int32_t rank = 0; rank < world; ++rank) {
          const auto left = PlanWithout(whole, {Rank{rank}});
          ASSERT_TRUE(left.ok()) << left.status();
          SCOPED_TRACE(testing::Message() << world << " ranks, " << nodes << " nodes, " << rank);
          expect_same(*left);
          narrowed += left->replicas(0).EqualWidths(0) ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(narrowed, 40) << "which this test is about";
}

TEST(EstimateMemoryTest, OfTwoEncodersOfOneModality_SharesTheContext) {
  // Four rows an image each: three images fit a context of 12 alone, one with both.
  const auto activations = [](bool two) {
    AJob job = AJob().Module("vision", ClipVision());
    if (two) job.Module("close_up", ClipVision());
    job.Module("language", Llama({.context = 12})).Edge("vision", "language");
    if (two) job.Edge("close_up", "language");
    const Plan plan = MustPlan(job);
    return EstimateMemory(plan, Rank{0}).activations;
  };
  EXPECT_EQ(activations(false), 3 * activations(true));
}

TEST(EstimateMemoryTest, OfActivations_FallsAlongThePipeline) {
  const Plan plan =
      MustPlan(AJob().Module("language", Llama(), {.pp = 4, .layers = {1, 1, 1, 1}}).Batch(8, 1));
  // 4 hidden + 2 (q + kv) * head_size + 3 mlp, of 32 positions; 4 bytes.
  const int64_t layer = (4 * 32 + 2 * (32 + 8) + 3 * 64) * 32 * 4, message = 32 * 32 * 4;
  // Of 4 microbatches that are kept, the gradients; an activation that leaves.
  EXPECT_EQ(EstimateMemory(plan, Rank{0}).activations, 4 * layer + (4 + 1) * message);
  // Of 2 kept, the gradients, an activation and a gradient that leave; and the stage before keeps
  // one more, which waits here.
  EXPECT_EQ(EstimateMemory(plan, Rank{2}).activations, 2 * layer + (2 + 1 + 1 + 1) * message);
}

// 32 positions of one microbatch, 3 layers on two ranks; 4 bytes.
TEST(EstimateMemoryTest, UnderSequenceParallelism_KeepsRowsOnce) {
  const auto activations = [](bool sequence, job::Recompute recompute) {
    return EstimateMemory(MustPlan(AJob().Module("language", Llama({.layers = 6}),
                                                 {.tp = 2,
                                                  .pp = 2,
                                                  .layers = {3, 3},
                                                  .recompute = recompute,
                                                  .sequence = sequence})),
                          Rank{0})
        .activations;
  };
  // Of 32 elements of a row 16 are elsewhere: four of them in each layer, a gradient that waits
  // and an activation that leaves; two of one layer are gathered.
  const auto saved = [&](job::Recompute recompute) {
    return activations(false, recompute) - activations(true, recompute);
  };
  EXPECT_EQ(saved(job::Recompute::kNone), (3 * 4 + 2 - 2) * 16 * 32 * 4);
  EXPECT_EQ(saved(job::Recompute::kFull), (3 * 1 + 1 + 2) * 16 * 32 * 4);
}

// 32 positions of one microbatch, 3 layers on one rank; 4 bytes.
TEST(EstimateMemoryTest, WithRecomputation_KeepsLess) {
  const auto activations = [](job::Recompute recompute) {
    return EstimateMemory(
               MustPlan(AJob().Module("language", Llama({.layers = 6}),
                                      {.pp = 2, .layers = {3, 3}, .recompute = recompute})),
               Rank{0})
        .activations;
  };
  const int64_t whole = 4 * 32 + 2 * (32 + 8) + 3 * 64;
  const int64_t selective = 2 * 32 + 2 * (32 + 8) + 2 * 64;
  const int64_t messages = (1 + 1) * 32;  // a gradient that waits, an activation that leaves
  EXPECT_EQ(activations(job::Recompute::kNone), (3 * whole + messages) * 32 * 4);
  EXPECT_EQ(activations(job::Recompute::kSelective),
            (3 * selective + whole - selective + messages) * 32 * 4);
  EXPECT_EQ(activations(job::Recompute::kFull), (3 * 32 + whole - 32 + messages) * 32 * 4);
}

// The second of two stages sends the gradient of its input to the first one before its weight pass.
TEST(EstimateMemoryTest, BetweenBackwardPasses_KeepsAllOperands) {
  const auto activations = [](job::Recompute recompute, bool sequence,
                              job::ScheduleName schedule = job::ScheduleName::k1F1B) {
    return EstimateMemory(MustPlan(AJob()
                                       .Module("language", Llama({.layers = 6}),
                                               {.tp = 2,
                                                .pp = 2,
                                                .layers = {3, 3},
                                                .recompute = recompute,
                                                .sequence = sequence})
                                       .Batch(4, 1)
                                       .Schedule(schedule)),
                          Rank{2})
        .activations;
  };
  const int64_t whole = activations(job::Recompute::kNone, false);
  EXPECT_EQ(activations(job::Recompute::kFull, false), whole) << "of its one microbatch all waits";
  // An activation that waits and a gradient that leaves, of which half is elsewhere.
  const int64_t messages = 2 * 16 * 32 * 4;
  EXPECT_EQ(activations(job::Recompute::kNone, true), whole - messages);
  // Two microbatches, of which all may wait for their weight passes.
  EXPECT_EQ(activations(job::Recompute::kFull, false, job::ScheduleName::kZeroBubbleH1),
            activations(job::Recompute::kNone, false, job::ScheduleName::kZeroBubbleH1));
}

// Behind the attention of the last layer the labelled rows alone go on, however many they are.
TEST(EstimateMemoryTest, OfTheLastPart_CountsWhatIsTakenOfAttentionsOutput) {
  const auto activations = [](bool feeds) {
    AJob job = AJob().Module("language", Llama());
    if (feeds) job.Module("regressor", support::Regressor()).Edge("language", "regressor");
    return EstimateMemory(MustPlan(job), Rank{0}).activations;
  };
  // Where an edge leaves all rows go on; then two messages, of 32 positions; 4 bytes.
  EXPECT_EQ(activations(true) - activations(false), (2 * 32 - 32) * 32 * 4);
}

TEST(EstimateMemoryTest, OfFrozenModules_LeavesOutWhatDoesNotTrain) {
  const auto estimate = [](bool vision_frozen, bool projector_frozen) {
    return EstimateMemory(
        MustPlan(AJob()
                     .Module("vision", ClipVision(), {.frozen = vision_frozen})
                     .Module("language", Llama())
                     .Edge("vision", "language", {.projector = 40, .frozen = projector_frozen})
                     .Batch(4, 1)),
        Rank{0});
  };
  const int64_t projector = 2 * 32 * 40 + 40 + 32;
  EXPECT_EQ(estimate(true, true).gradients, 0);
  EXPECT_EQ(estimate(true, true).optimizer, 0);
  EXPECT_EQ(estimate(true, false).optimizer, 2 * 4 * projector);
  const int64_t gradients = estimate(true, false).gradients;
  EXPECT_GE(gradients, 4 * projector);
  EXPECT_LT(gradients, 5 * projector) << "only of what trains, and padding";
  EXPECT_GT(estimate(false, false).gradients, gradients);
  // One layer at work, and of 8 items (they fit the context) of 4 rows in 2 microbatches what the
  // projector keeps.
  const int64_t layer = 2 * 32 + 2 * (32 + 32) + 64;
  EXPECT_EQ(estimate(true, true).activations, 32 * (layer + 32) * 4) << "a message leaves";
  EXPECT_EQ(estimate(true, false).activations, 32 * (layer + 2 * (32 + 2 * 40) + (2 + 1) * 32) * 4);
  EXPECT_GT(estimate(false, true).activations, 2 * estimate(true, false).activations);
}

TEST(EstimateMemoryTest, OfWhisper_CountsItsConvolutions) {
  const MemoryEstimate estimate = EstimateMemory(
      MustPlan(
          AJob().Module("audio", Whisper()).Module("language", Llama()).Edge("audio", "language")),
      Rank{0});
  const int64_t layer = 4 * 32 + 2 * (32 + 32) + 2 * 64, front = 2 * 5 + 3 * 32;
  EXPECT_EQ(estimate.activations, 32 * (2 * layer + front + (1 + 1) * 32) * 4);
}

}  // namespace
}  // namespace phalanx::plan

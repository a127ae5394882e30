#include "core/plan/activation_estimate.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "core/plan/memory_estimate.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::LargeClipVision;
using support::LargeLlama;
using support::Llama;

// What 64 more words of the vocabulary add on one rank.
int64_t OfMoreWords(AJob job, Rank rank, const SampleShape& samples = {}) {
  const auto activations = [&](int64_t words) {
    job.spec().modules.back().architecture.vocabulary = 96 + words;
    return EstimateMemory(MustPlan(job), rank, samples).activations;
  };
  return activations(64) - activations(0);
}

// 32 rows of hidden 32, queries 32, keys and values 8, MLP 64 and two of it behind gate and up.
constexpr int64_t kRows = 32, kLayer = 4 * 32 + 2 * (32 + 8) + 3 * 64;

TEST(ActivationEstimateTest, OfTheHead_IsOfLogitsInTheComputeTypeAndOfWhatItAndItsNormRead) {
  AJob job = AJob().Module("language", Llama({.layers = 2})).Compute(job::Precision::kBf16);
  EXPECT_EQ(OfMoreWords(job, Rank{0}), kRows * 64 * 2);
  // Attention's output that goes on is there a second time.
  EXPECT_EQ(EstimateMemory(MustPlan(job), Rank{0}).activations,
            kRows * (2 * kLayer + 32 + 96 + 2 * 32) * 2);
}

TEST(ActivationEstimateTest, OfDelayedWeightPasses_KeepsLogitsOfEachMicrobatchThatWaits) {
  const auto job = [](job::ScheduleName schedule) {
    return AJob()
        .Module("language", Llama(), {.pp = 2, .layers = {2, 2}})
        .Batch(4, 1)
        .Schedule(schedule);
  };
  EXPECT_EQ(OfMoreWords(job(job::ScheduleName::k1F1B), Rank{1}), kRows * 64 * 4);
  EXPECT_EQ(OfMoreWords(job(job::ScheduleName::kZeroBubbleH1), Rank{1}), 2 * kRows * 64 * 4);
}

// Not those of a head whose weights do not train: nothing of it waits for a weight pass.
TEST(ActivationEstimateTest, OfDelayedWeightPassesThatAFrozenModuleHasNot_KeepsLogitsOnce) {
  AJob job = AJob()
                 .Module("vision", ClipVision())
                 .Module("language", Llama(), {.pp = 2, .layers = {2, 2}, .frozen = true})
                 .Edge("vision", "language", {.projector = 32})
                 .Batch(4, 1)
                 .Schedule(job::ScheduleName::kZeroBubbleH1);
  EXPECT_EQ(OfMoreWords(job, Rank{2}), kRows * 64 * 4);
}

TEST(ActivationEstimateTest, OfFewerItems_IsOfTheRowsThatTheyHave) {
  const auto activations = [](const SampleShape& samples) {
    const Plan plan = MustPlan(AJob()
                                   .Module("vision", ClipVision(), {.offset = 0})
                                   .Module("language", Llama(), {.offset = 0})
                                   .Edge("vision", "language", {.projector = 40}));
    return EstimateMemory(plan, Rank{0}, samples).activations;
  };
  // Of 4 rows: the layers, what is before them (patches of 3 x 4 x 4), the projector; a message
  // that leaves, and on the way back one that waits and one that leaves.
  const int64_t item =
      4 * (2 * (4 * 32 + 2 * (32 + 32) + 2 * 64) + (48 + 32) + (32 + 2 * 40) + (1 + 1 + 1) * 32) *
      4;
  EXPECT_EQ(activations({.items = 5}) - activations({.items = 2}), 3 * item);
  EXPECT_EQ(activations({.items = 8}), activations({})) << "8 fit the context";
  EXPECT_EQ(activations({.items = 9}), activations({}));
}

// Behind attention of the last layer, and in the head.
TEST(ActivationEstimateTest, OfLabelledRows_LeavesOutWhatOthersDoNotGoThrough) {
  const auto left_out = [](job::Recompute recompute, job::LinearFormat linear, bool feeds) {
    AJob job = AJob()
                   .Module("language", Llama({.layers = 2}), {.recompute = recompute})
                   .Compute(job::Precision::kBf16)
                   .Linear(linear);
    if (feeds) job.Module("behind", support::Regressor()).Edge("language", "behind");
    job.spec().resources.device = job::DeviceKind::kGpu;
    const Plan plan = MustPlan(job);
    const int64_t all = EstimateMemory(plan, Rank{0}).activations;
    return (all - EstimateMemory(plan, Rank{0}, {.labelled_share = 0.25}).activations) /
           (kRows * 3 / 4 * 2);
  };
  using job::Recompute;
  const job::LinearFormat compute = job::LinearFormat::kCompute, fp8 = job::LinearFormat::kFp8;
  // Logits, and what the head and its norm read; attention's output that goes on.
  const int64_t head = 96 + 2 * 32, taken = 32;
  EXPECT_EQ(left_out(Recompute::kNone, compute, false), head + taken + 2 * 32 + 3 * 64);
  EXPECT_EQ(left_out(Recompute::kSelective, compute, false), head + taken + 32 + 2 * 64);
  EXPECT_EQ(left_out(Recompute::kFull, compute, false), head + taken);
  // Inputs of three products in one byte, that of o beside attention's output.
  EXPECT_EQ(left_out(Recompute::kNone, fp8, false), head + 32 + 32 / 2 + 2 * 64 + 64 / 2 + 32 / 2);
  // Where rows without a label leave along an edge, all go through the layer and its norm.
  EXPECT_EQ(left_out(Recompute::kNone, compute, true), 96 + 32);
}

TEST(ActivationEstimateTest, OfLabelledRows_IsOfOneAtLeast) {
  const Plan plan = MustPlan(AJob().Module("language", Llama()));
  EXPECT_EQ(EstimateMemory(plan, Rank{0}, {.labelled_share = 0}).activations,
            EstimateMemory(plan, Rank{0}, {.labelled_share = 1.0 / kRows}).activations);
}

// A 5B decoder with ViT-L in data parallel on four devices, 4 samples a microbatch with 4 pictures
// each, 7 of 16 rows labelled.
TEST(ActivationEstimateTest, OfALargeJob_HasEachTermToTheByte) {
  AJob job = AJob()
                 .Module("vision", LargeClipVision(), {.dp = 4, .offset = 0})
                 .Module("language", LargeLlama(), {.dp = 4, .offset = 0})
                 .Edge("vision", "language", {.projector = 4096})
                 .Batch(16, 4)
                 .Compute(job::Precision::kBf16);
  job.spec().recovery.state_copies = 1;
  job.spec().resources.device = job::DeviceKind::kGpu;
  const Plan plan = MustPlan(job);
  const MemoryEstimate most = EstimateMemory(plan, Rank{0});
  const MemoryEstimate here = EstimateMemory(plan, Rank{0}, {.items = 4, .labelled_share = 0.4375});
  EXPECT_EQ(here.parameters, most.parameters);
  const int64_t rows = 4 * 4096, labelled = rows * 7 / 16, pictures = 4 * 4 * 576;
  const int64_t layer = 4 * 4096 + 2 * (4096 + 1024) + 3 * 14336;
  const int64_t behind = 2 * 4096 + 3 * 14336;
  const int64_t language =
      rows * 18 * layer - (rows - labelled) * behind + labelled * (4096 + 128256 + 2 * 4096);
  const int64_t vision = pictures * (24 * 16384 + 3 * 14 * 14 + 1024 + 1024 + 2 * 4096);
  const int64_t messages = pictures * 3 * 4096;
  const int64_t pixels = 2 * 4 * 4 * 3 * 336 * 336;  // read, and ahead
  EXPECT_EQ(here.activations, 2 * (language + vision + messages + pixels));
}

// Of two microbatches, on the ranks that read them.
TEST(ActivationEstimateTest, OfItems_IsOfThoseThatAGpuReadsAndThoseAhead) {
  const auto more = [](job::Precision compute, const job::Architecture& encoder, Rank rank) {
    const auto activations = [&](job::DeviceKind device) {
      AJob job = AJob()
                     .Module("encoder", encoder, {.pp = 2, .layers = {1, 1}})
                     .Module("language", Llama())
                     .Edge("encoder", "language", {.projector = 32})
                     .Batch(4, 2)
                     .Compute(compute);
      job.spec().resources.device = device;
      return EstimateMemory(MustPlan(job), rank, {.items = 1}).activations;
    };
    return activations(job::DeviceKind::kGpu) - activations(job::DeviceKind::kCpu);
  };
  const job::Architecture vision = ClipVision(), audio = support::Whisper();
  const int64_t picture = 3 * vision.image_size * vision.image_size,
                sound = audio.mel_bins * audio.frames;
  EXPECT_EQ(more(job::Precision::kBf16, vision, Rank{0}), 2 * 2 * picture * 2);
  EXPECT_EQ(more(job::Precision::kFp32, vision, Rank{0}), 2 * 2 * picture * 4);
  EXPECT_EQ(more(job::Precision::kBf16, audio, Rank{0}), 2 * 2 * sound * 2);
  EXPECT_EQ(more(job::Precision::kBf16, vision, Rank{1}), 0) << "the second stage reads none";
  EXPECT_EQ(more(job::Precision::kBf16, vision, Rank{2}), 0);
}

}  // namespace
}  // namespace phalanx::plan

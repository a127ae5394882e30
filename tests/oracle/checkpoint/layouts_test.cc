// A checkpoint that one layout wrote, loaded into another: training goes on as if nothing had
// happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint_io/checkpoints.h"
#include "tests/oracle/checkpoint/written_run.h"
#include "tests/support/files.h"

namespace phalanx::oracle {
namespace {

using job::ScheduleName;
using support::AJob;
using support::Layout;

constexpr int64_t kWritten = 3, kSteps = 5;

struct Model {
  bool frozen_vision = false;
  job::Precision compute = job::Precision::kFp64;
};

// SwiGLU, a tied head, a vision encoder with a projector.
NamedJob JobOf(const Model& model, Layout vision, const Layout& language,
               const job::Schedule& schedule = {.name = ScheduleName::k1F1B}) {
  vision.frozen = model.frozen_vision;
  AJob job = AJob()
                 .Module("vision", TinyVision(), vision)
                 .Module("language", TinyLanguage({.layers = 6, .tied_head = true}), language)
                 .Edge("vision", "language", {.projector = 20})
                 .Batch(8, 1)
                 .Steps(kSteps);
  job.spec().schedule = schedule;
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  NamedJob named = Named("", std::move(job));
  named.spec.compute = model.compute;
  return named;
}

NamedJob WrittenJob(const Model& model) {
  return JobOf(model, {.tp = 2}, {.tp = 2, .dp = 2, .pp = 2});
}

void ExpectSame(const std::vector<TrainedStep>& loaded, const std::vector<TrainedStep>& other) {
  ASSERT_EQ(loaded.size(), kSteps - kWritten);
  ASSERT_EQ(other.size(), kSteps);
  for (size_t i = 0; i < loaded.size(); ++i) {
    const TrainedStep& expected = other[i + kWritten];
    EXPECT_NEAR(loaded[i].decision.loss, expected.decision.loss,
                1e-9 * std::abs(expected.decision.loss));
    const WorstTensor worst = Compare(loaded[i].parameters, expected.parameters);
    EXPECT_LE(worst.error, 1e-9) << worst.name << ", step " << i + kWritten + 1;
  }
}

// The run that writes, once a model.
class LoadTest : public testing::Test {
 protected:
  struct Whole {
    std::string path;
    std::vector<TrainedStep> steps, plain;
  };
  static const Whole& Uninterrupted(const Model& model) {
    static std::map<std::pair<bool, job::Precision>, Whole> made;
    const auto [entry, first] = made.try_emplace({model.frozen_vision, model.compute});
    Whole& whole = entry->second;
    if (!first) return whole;
    const NamedJob job = WrittenJob(model);
    WrittenRun run =
        TrainAndWrite(PlanFor(job.spec), job.data,
                      {.directory = support::MakeFolder("checkpoints"), .write_at = {kWritten}});
    EXPECT_THAT(run.failed, testing::IsEmpty());
    EXPECT_EQ(run.published.size(), 1u);
    if (!run.published.empty()) whole.path = run.published.front();
    whole.steps = std::move(run.steps);
    if (model.compute == job::Precision::kFp64)
      whole.plain = TrainPlain(job.spec, job.data, kSteps);
    return whole;
  }

  static std::vector<TrainedStep> LoadInto(const NamedJob& job, const std::string& path,
                                           const plan::RankList& lost = {}) {
    const WrittenRun run = TrainAndWrite(PlanFor(job.spec, lost), job.data, {.load = path});
    for (const absl::Status& loaded : run.loaded) EXPECT_TRUE(loaded.ok()) << loaded;
    return run.steps;
  }
  static void ExpectGoesOn(const Model& model, const NamedJob& job,
                           const plan::RankList& lost = {}) {
    const Whole& whole = Uninterrupted(model);
    ASSERT_FALSE(whole.path.empty());
    const std::vector<TrainedStep> loaded = LoadInto(job, whole.path, lost);
    ExpectSame(loaded, whole.steps);
    ExpectSame(loaded, whole.plain);
  }
};

TEST_F(LoadTest, WhatIsWritten_IsSoundAndWhole) {
  const std::string& path = Uninterrupted({}).path;
  const auto manifest = checkpoint::ReadManifestOf(path);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step, kWritten);
  EXPECT_EQ(manifest->updates, kWritten);
  const absl::Status sound = checkpoint::VerifyCheckpoint(path, *manifest, {});
  EXPECT_TRUE(sound.ok()) << sound;
}

TEST_F(LoadTest, TheSameLayout_GoesOnToTheBit) {
  for (const job::Precision compute :
       {job::Precision::kFp64, job::Precision::kFp32, job::Precision::kBf16}) {
    const Model model{.compute = compute};
    const Whole& whole = Uninterrupted(model);
    const std::vector<TrainedStep> loaded = LoadInto(WrittenJob(model), whole.path);
    ASSERT_EQ(loaded.size(), kSteps - kWritten);
    for (size_t i = 0; i < loaded.size(); ++i) {
      const TrainedStep& expected = whole.steps[i + kWritten];
      EXPECT_EQ(loaded[i].decision.loss, expected.decision.loss);
      EXPECT_EQ(loaded[i].decision.gradient_norm, expected.decision.gradient_norm);
      for (const auto& [name, tensor] : expected.parameters) {
        EXPECT_TRUE(at::equal(loaded[i].parameters.at(name), tensor)) << name;
      }
    }
  }
}

TEST_F(LoadTest, ThreeTensorRanks) { ExpectGoesOn({}, JobOf({}, {}, {.tp = 3})); }
TEST_F(LoadTest, OneTensorRankOfFourReplicas) { ExpectGoesOn({}, JobOf({}, {.dp = 4}, {.dp = 4})); }
TEST_F(LoadTest, ThreePipelineStages) { ExpectGoesOn({}, JobOf({}, {.pp = 2}, {.pp = 3})); }
TEST_F(LoadTest, OneRank) { ExpectGoesOn({}, JobOf({}, {.offset = 0}, {.offset = 0})); }
TEST_F(LoadTest, MoreRanks) {
  ExpectGoesOn({}, JobOf({}, {.tp = 2, .dp = 2}, {.tp = 4, .dp = 2, .pp = 2}));
}
TEST_F(LoadTest, ZeroBubbleV) {
  ExpectGoesOn({}, JobOf({}, {.tp = 2}, {.tp = 2, .pp = 2}, {.name = ScheduleName::kZeroBubbleV}));
}
TEST_F(LoadTest, Interleaved) {
  ExpectGoesOn(
      {}, JobOf({}, {}, {.dp = 2, .pp = 2}, {.name = ScheduleName::kInterleaved, .chunks = 2}));
}

TEST_F(LoadTest, WithMirrorsAndWithout) {
  for (const int32_t copies : {1, 2, 3}) {
    NamedJob job = JobOf({}, {.tp = 2}, {.tp = 2, .dp = 3});
    job.spec.recovery.state_copies = copies;
    ExpectGoesOn({}, job);
  }
}

TEST_F(LoadTest, ReducedReplica) {
  ExpectGoesOn({}, JobOf({}, {.tp = 2}, {.tp = 3, .dp = 2}), {Rank{6}});
  ExpectGoesOn({}, JobOf({}, {.tp = 3, .dp = 2}, {.tp = 2, .dp = 2, .pp = 2}), {Rank{1}, Rank{9}});
}

TEST_F(LoadTest, WrittenByAReducedReplica) {
  const NamedJob job = JobOf({}, {.tp = 2}, {.tp = 3, .dp = 2});
  const WrittenRun run =
      TrainAndWrite(PlanFor(job.spec, {Rank{6}}), job.data,
                    {.directory = support::MakeFolder("checkpoints"), .write_at = {kWritten}});
  ASSERT_EQ(run.published.size(), 1u);
  ExpectSame(LoadInto(WrittenJob({}), run.published[0]), run.steps);
}

TEST_F(LoadTest, FrozenEncoderWithAProjectorThatTrains) {
  const Model model{.frozen_vision = true};
  ExpectGoesOn(model, WrittenJob(model));
  ExpectGoesOn(model, JobOf(model, {.tp = 3, .dp = 2}, {.tp = 2}));
  ExpectGoesOn(model, JobOf(model, {.dp = 2, .pp = 2}, {.dp = 4}));
}

}  // namespace
}  // namespace phalanx::oracle

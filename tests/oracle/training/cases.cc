#include "tests/oracle/training/cases.h"

#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "core/plan/digest_text.h"
#include "core/plan/plan.h"
#include "core/schedule/checker.h"
#include "core/schedule/program.h"

namespace phalanx::oracle {

job::JobSpec SpecOf(const Case& c, job::Precision precision) {
  support::AJob job;
  if (c.vision.dp > 0) job.Module("vision", support::ClipVision(), c.vision);
  job.Module("language", support::Llama(c.shape), c.language);
  if (c.vision.dp > 0) job.Edge("vision", "language", {.projector = 48});
  // Four microbatches a replica, the last ones shorter.
  const int64_t replicas = c.language.dp;
  job.Batch(8 * replicas - replicas / 2, 2).Compute(precision);
  job.spec().optimizer.clip_norm = 0.5;
  job.spec().optimizer.weight_decay = 0.1;
  job.spec().optimizer.warmup_steps = 2;
  if (precision == job::Precision::kFp32) job.spec().optimizer.epsilon = 1e-3;
  return job.Build();
}

void ExpectSteps(const std::vector<TrainedStep>& trained, const std::vector<TrainedStep>& plain,
                 const job::JobSpec& spec, double tolerance) {
  ASSERT_EQ(trained.size(), plain.size());
  for (size_t step = 0; step < plain.size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step + 1));
    const train::Decision& a = trained[step].decision;
    const train::Decision& b = plain[step].decision;
    EXPECT_EQ(a.counted_tokens, b.counted_tokens);
    EXPECT_NEAR(a.loss, b.loss, tolerance * b.loss);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, tolerance * b.gradient_norm);
    EXPECT_GT(b.gradient_norm, spec.optimizer.clip_norm) << "the case is meant to clip";
    const WorstTensor gradient = Compare(trained[step].gradients, plain[step].gradients);
    EXPECT_LE(gradient.error, tolerance) << "gradient of " << gradient.name;
    const WorstTensor parameter = Compare(trained[step].parameters, plain[step].parameters);
    EXPECT_LE(parameter.error, tolerance) << "parameter " << parameter.name;
  }
}

job::Architecture TinyVision(int32_t layers) {
  return support::ClipVision({.hidden_size = 16,
                              .layers = layers,
                              .heads = 4,
                              .mlp_size = 24,
                              .block = 4,
                              .image_size = 4,
                              .patch_size = 2});
}

job::Architecture TinyAudio(int32_t layers) {
  return support::Whisper({.hidden_size = 16,
                           .layers = layers,
                           .heads = 4,
                           .mlp_size = 24,
                           .block = 4,
                           .mel_bins = 4,
                           .frames = 8});
}

job::Architecture TinyLanguage(const TinyDecoder& shape) {
  return support::Llama({.hidden_size = 16,
                         .layers = shape.layers,
                         .heads = 4,
                         .kv_heads = shape.kv_heads,
                         .mlp_size = 18,  // the last block is padded
                         .block = 4,
                         .vocabulary = 29,
                         .context = 64,
                         .tied_head = shape.tied_head});
}

job::Architecture TinyRegressor(int32_t layers) {
  return support::Regressor({.hidden_size = 16,
                             .layers = layers,
                             .heads = 2,
                             .kv_heads = 2,
                             .mlp_size = 16,
                             .block = 4,
                             .context = 64});
}

support::AJob LanguageAlone(const support::Layout& layout, const TinyDecoder& shape) {
  return support::AJob().Module("language", TinyLanguage(shape), layout);
}

support::AJob VisionAndLanguage(const support::Layout& vision, const support::Layout& language) {
  return support::AJob()
      .Module("vision", TinyVision(), vision)
      .Module("language", TinyLanguage(), language)
      .Edge("vision", "language", {.projector = 20});
}

NamedJob NamedOfManyRows(const std::string& name, support::AJob job) {
  NamedJob named = Named(name, std::move(job.Batch(8, 4)));
  named.data.images_max = 3;
  named.data.text_max = 9;
  return named;
}

NamedJob Named(const std::string& name, support::AJob job) {
  NamedJob named{.name = name, .spec = job.Compute(job::Precision::kFp64).Build()};
  named.spec.optimizer.clip_norm = 0.01;
  named.spec.optimizer.weight_decay = 0.1;
  named.data = DataShapeOf(named.spec);
  named.data.samples = 3 * named.spec.batch.global;
  named.data.text_max = 5;
  return named;
}

std::string NameOf(const testing::TestParamInfo<NamedJob>& info) { return info.param.name; }

void ExpectProven(const job::JobSpec& spec) {
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectProven(*plan);
}

void ExpectProven(const plan::Plan& plan) {
  const auto programs = schedule::BuildStep(plan);
  ASSERT_TRUE(programs.ok()) << programs.status();
  const auto report = schedule::CheckStep(plan, *programs);
  ASSERT_TRUE(report.ok()) << report.status();
}

namespace {

// The plain model's steps. Neither layout, schedule nor recomputation tells it anything, so cases
// that differ in nothing else share them.
const std::vector<TrainedStep>& PlainSteps(const NamedJob& job, int64_t steps) {
  job::JobSpec spec = OnOneRankEach(job.spec);
  spec.batch.micro = 1;
  for (job::Module& module : spec.modules) module.recompute = job::Recompute::kNone;
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  const DataShape& data = job.data;  // its items are those of the modules
  const std::string key =
      absl::StrCat(plan::CanonicalText(plan.value()), "data ", data.samples, " ", data.vocabulary,
                   " images ", data.images_min, "-", data.images_max, " sounds ", data.sounds_min,
                   "-", data.sounds_max, " text ", data.text_min, "-", data.text_max, " targets ",
                   data.target_rows_max, " only ", data.text_only_first, "-", data.text_only_end,
                   " of ", data.text_only_period, " corrupt ", data.corrupt_sample);
  static auto& known = *new std::map<std::string, std::vector<TrainedStep>>();
  const auto [entry, first] = known.try_emplace(key);
  if (first) entry->second = TrainPlain(job.spec, data, steps);
  return entry->second;
}

}  // namespace

constexpr int64_t kSteps = 3;

std::vector<TrainedStep> ExpectEqualsPlain(const NamedJob& job, const plan::RankList& lost) {
  SCOPED_TRACE(job.name);
  job::JobSpec spec = job.spec;
  spec.steps = kSteps;
  const auto plan = PlanWithout(spec, lost);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  ExpectProven(*plan);
  if (testing::Test::HasFatalFailure()) return {};
  std::vector<TrainedStep> trained = TrainInProcess(*plan, job.data);
  ExpectSteps(trained, PlainSteps(job, kSteps), job.spec, 1e-9);
  return trained;
}

std::vector<TrainedStep> ExpectEqualsPlain(const NamedJob& job) {
  SCOPED_TRACE(job.name);
  ExpectProven(job.spec);
  if (testing::Test::HasFatalFailure()) return {};
  std::vector<TrainedStep> trained = TrainInProcess(job.spec, job.data, kSteps);
  ExpectSteps(trained, PlainSteps(job, kSteps), job.spec, 1e-9);
  return trained;
}

}  // namespace phalanx::oracle

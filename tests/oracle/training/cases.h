// tests/oracle/training/cases.h: a layout as a case of a test, and the measure that all are held
// to.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "tests/oracle/training/harness.h"
#include "tests/support/specs.h"

namespace phalanx::oracle {

struct Case {
  std::string name;
  support::Layout vision;  // dp 0: language alone
  support::Layout language;
  support::LlamaShape shape = {};
};

// Vision feeding language, four microbatches a replica, the last ones shorter; gradients are
// clipped. In fp32 the optimizer's epsilon is as large as an element of the clipped gradient. With
// a small one AdamW's first updates are the gradient's sign, which for gradients near zero is
// rounding noise; so the update is a smooth function of the gradient, and parameters can be held as
// tightly as it.
job::JobSpec SpecOf(const Case& c, job::Precision precision);

// Loss, gradient norm, every gradient and every parameter after each step, by Compare().
void ExpectSteps(const std::vector<TrainedStep>& trained, const std::vector<TrainedStep>& plain,
                 const job::JobSpec& spec, double tolerance);

// Modules as small as can still be cut: hidden size 16, four heads, at least four blocks of MLP
// columns. An image is four rows, a sound four.
job::Architecture TinyVision(int32_t layers = 2);
job::Architecture TinyAudio(int32_t layers = 2);
struct TinyDecoder {
  int32_t layers = 4;
  int32_t kv_heads = 2;
  bool tied_head = false;
};
job::Architecture TinyLanguage(const TinyDecoder& shape = {});
job::Architecture TinyRegressor(int32_t layers = 2);

// Jobs of these modules, one and two.
support::AJob LanguageAlone(const support::Layout& layout, const TinyDecoder& shape = {});
support::AJob VisionAndLanguage(const support::Layout& vision, const support::Layout& language);

// Beside the default order of axes, fastest first, the two that place stages elsewhere.
using AxisOrder = std::array<job::MeshAxis, 4>;
inline constexpr AxisOrder kPipelineInsideData = {job::MeshAxis::kTensor, job::MeshAxis::kContext,
                                                  job::MeshAxis::kPipeline, job::MeshAxis::kData};
inline constexpr AxisOrder kPipelineFirst = {job::MeshAxis::kPipeline, job::MeshAxis::kData,
                                             job::MeshAxis::kContext, job::MeshAxis::kTensor};

// A job with its data, in fp64, whose gradients are clipped and whose weights decay.
struct NamedJob {
  std::string name;
  job::JobSpec spec;
  DataShape data;
};
NamedJob Named(const std::string& name, support::AJob job);
// The same with eight samples in microbatches of four, and rows enough that slices of them are cut
// as nothing else is.
NamedJob NamedOfManyRows(const std::string& name, support::AJob job);
// For INSTANTIATE_TEST_SUITE_P.
std::string NameOf(const testing::TestParamInfo<NamedJob>& info);

// Fails the test if the spec cannot be planned or its programs cannot be proven, so that a deadlock
// is a message and not a timeout.
void ExpectProven(const job::JobSpec& spec);
void ExpectProven(const plan::Plan& plan);
// Proves the job's programs, then holds three steps of it to the plain model within 1e-9. Returns
// them; nothing if they cannot be trained.
std::vector<TrainedStep> ExpectEqualsPlain(const NamedJob& job);
// The same in the layout that is left without these ranks.
std::vector<TrainedStep> ExpectEqualsPlain(const NamedJob& job, const plan::RankList& lost);

}  // namespace phalanx::oracle

// tests/unit/core/schedule/searches.h: jobs that searches look for layouts of, and what they find.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/schedule/search.h"
#include "tests/support/profiles.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule::searches {

inline job::JobSpec Decoder(int64_t global = 8) {
  return support::AJob().Module("language", support::Llama({.layers = 4})).Batch(global, 1);
}
inline job::JobSpec WithEncoder(int64_t global = 8) {
  return support::AJob()
      .Module("vision", support::ClipVision())
      .Module("language", support::Llama({.layers = 4}))
      .Edge("vision", "language", {.projector = 32})
      .Batch(global, 1);
}
// As large as real ones.
inline job::JobSpec LargeWithEncoder() {
  support::AJob job;
  job.Module("vision", support::LargeClipVision())
      .Module("language", support::LargeLlama())
      .Edge("vision", "language", {.projector = 4096})
      .Batch(16, 1)
      .Compute(job::Precision::kBf16);
  job.spec().resources.device = job::DeviceKind::kGpu;
  return job;
}

inline SearchResult Search(const job::JobSpec& spec, const SearchOptions& options) {
  auto result = SearchLayouts(spec, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : SearchResult{};
}

// That keeps its clock, and all of whose memory is the job's.
inline DeviceProfile SteadyH200() {
  DeviceProfile profile = *FindProfile("h200");
  profile.power.reset();
  profile.process.reset();
  profile.unestimated_bytes = 0;
  return profile;
}

// The modules' degrees and offsets, which tell layouts apart.
inline std::string Shape(const job::JobSpec& spec) {
  std::string text;
  for (const job::Module& module : spec.modules) {
    const job::Parallel& p = module.parallel;
    absl::StrAppend(&text, module.offset, "+", p.ranks, " tp", p.tp, " pp", p.pp, " dp", p.dp,
                    "; ");
  }
  return text;
}

}  // namespace phalanx::schedule::searches

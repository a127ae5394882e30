// tests/unit/core/checkpoint_io/written.h: a job, and a checkpoint of it to spoil.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/names.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"
#include "tests/support/checkpoints.h"
#include "tests/support/files.h"
#include "tests/support/specs.h"

namespace phalanx::checkpoint {

// A frozen encoder on rank 0, and a language model on ranks 1 to 4.
inline job::JobSpec TwoModules(job::Precision compute = job::Precision::kFp32) {
  return support::AJob()
      .Module("vision", support::ClipVision(), {.frozen = true})
      .Module("language", support::Llama({.layers = 2}), {.tp = 2, .dp = 2})
      .Edge("vision", "language", {.projector = 48})
      .Batch(8, 2)
      .Steps(1000)
      .Compute(compute);
}

inline plan::Plan PlanOf(const job::JobSpec& spec) {
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

inline std::string PartPath(const std::string& checkpoint, int32_t rank) {
  return absl::StrCat(checkpoint, "/", PartFileName(rank));
}

inline void FlipBit(const std::string& path, size_t byte) {
  std::string bytes = support::ReadFile(path);
  bytes[byte] ^= 0x10;
  support::WriteFile(path, bytes);
}

// A folder for checkpoints of that job.
class WrittenTest : public testing::Test {
 protected:
  std::string Write(int64_t step) const { return support::WriteCheckpoint(plan_, folder_, step); }

  const job::JobSpec spec_ = TwoModules();
  const plan::Plan plan_ = PlanOf(spec_);
  const std::string folder_ = support::MakeFolder("checkpoints");
};

}  // namespace phalanx::checkpoint

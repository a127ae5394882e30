// What a plan says of what admission lowered for it, over devices of any memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/memory_fit.h"
#include "core/schedule/admission.h"
#include "tests/support/specs.h"
#include "tests/unit/core/schedule/admitted.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using testing::AllOf;
using testing::Contains;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

constexpr int kSizes = 64;  // of devices

// Activations outweigh everything else by far.
AJob LongRows() {
  return AJob()
      .Module("language",
              support::Llama({.hidden_size = 512,
                              .layers = 24,
                              .heads = 8,
                              .kv_heads = 8,
                              .mlp_size = 2048,
                              .block = 128,
                              .vocabulary = 4096,
                              .context = 8192}),
              {.tp = 2, .dp = 2})
      .Batch(32, 8);
}

plan::Plan AsWritten(const job::JobSpec& spec) {
  return *plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
}

TEST(AdmissionNotesTest, RecomputeThatWasLowered_IsSaid_AndNothingElseIs) {
  AJob job = LongRows();
  job.Batch(4, 1);  // a microbatch of one sample, and no host memory: nothing else can be lowered
  job.spec().recovery.state_home = job::StateHome::kMirror;
  const job::JobSpec spec = job;
  const plan::Plan written = AsWritten(spec);
  const int64_t enough = 2 * MostOf(*plan::PlanWithout(written, {Rank{0}}));
  int none = 0, selective = 0, full = 0;
  for (int size = kSizes; size > 0; --size) {
    const absl::StatusOr<plan::Plan> plan = Admitted(spec, enough / kSizes * size);
    if (!plan.ok()) continue;
    SCOPED_TRACE(testing::PrintToString(plan->notes));
    EXPECT_EQ(plan->layout.micro, 0);
    const auto recompute = plan->layout.modules[0].recompute;
    if (!recompute.has_value()) {
      ++none;
      EXPECT_THAT(plan->notes, Not(Contains(HasSubstr("recompute"))));
      continue;
    }
    EXPECT_EQ(plan->spec.modules[0].recompute, *recompute);
    EXPECT_LT(MostOf(*plan), MostOf(written));
    ++(*recompute == job::Recompute::kSelective ? selective : full);
    EXPECT_THAT(plan->notes, Contains(StartsWith(*recompute == job::Recompute::kSelective
                                                     ? "recompute of module language is selective "
                                                       "instead of none: "
                                                     : "recompute of module language is full "
                                                       "instead of none: ")));
  }
  EXPECT_GT(none, 0);
  EXPECT_GT(selective, 0);
  EXPECT_GT(full, 0);
}

// What an encoder computes again costs less than what the language module does.
TEST(AdmissionNotesTest, EncoderThatKeepsTooMuch_ComputesAllAgainBeforeTheLanguageModule) {
  AJob job;
  job.Module("vision", support::ClipVision({.layers = 48}))
      .Module("language", support::Llama({.layers = 4}))
      .Edge("vision", "language", {.projector = 32})
      .Batch(16, 1);
  const auto recomputed = [&job](job::Recompute vision, job::Recompute language) {
    job::JobSpec spec = job;
    spec.modules[0].recompute = vision;
    spec.modules[1].recompute = language;
    return MostOf(AsWritten(spec));
  };
  using job::Recompute;
  const int64_t enough = recomputed(Recompute::kFull, Recompute::kSelective);
  ASSERT_LT(enough, recomputed(Recompute::kSelective, Recompute::kSelective));
  const absl::StatusOr<plan::Plan> plan = Admitted(job, enough);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->notes,
              IsSupersetOf({StartsWith("recompute of module vision is full instead of none: "),
                            StartsWith("recompute of module language is selective instead of ")}));
  EXPECT_EQ(plan->layout.modules[0].recompute, Recompute::kFull);
  EXPECT_EQ(plan->layout.modules[1].recompute, Recompute::kSelective);
}

TEST(AdmissionNotesTest, JobThatDoesNotFitAsWritten_SaysThatInsteadOfALoss) {
  const job::JobSpec spec = LongRows();
  const int64_t need = MostOf(AsWritten(spec));
  const absl::StatusOr<plan::Plan> tight = Admitted(spec, need - 1);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_THAT(tight->notes, Contains(AllOf(StartsWith("batch.micro is "), HasSubstr("instead of 8"),
                                           EndsWith(": as written the job does not fit"))));
  const absl::StatusOr<plan::Plan> fits = Admitted(spec, need);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_THAT(fits->notes, Not(Contains(HasSubstr("as written the job does not fit"))));
}

// Nothing is lost while it does: the others have all state.
TEST(AdmissionNotesTest, JobThatWaits_IsToldWhatItCostsToWaitInVain) {
  const auto notes_of = [](int32_t state_copies) {
    AJob job = AJob().Module("language", support::Llama(), {.tp = 2, .dp = 3}).Batch(6, 2);
    job.spec().recovery.ladder = {job::Rung::kWait};
    job.spec().recovery.state_copies = state_copies;
    return Admitted(job, 0)->notes;
  };
  EXPECT_THAT(notes_of(2), Contains(StartsWith(
                               "losing device node-0/0 makes the job wait for it, which costs all "
                               "steps so far where it is not back within 10m (recovery.hold): "
                               "recovery.ladder allows no rung")));
  EXPECT_THAT(notes_of(1), Contains(StartsWith("losing device node-0/0 costs all steps so far: ")))
      << "of some it has the only home";
}

// Ranks of one stage of a pipeline are of one kind.
TEST(AdmissionNotesTest, LossesOfSeveralKindsOfDevices_AreCountedByKind) {
  const auto notes_of = [](const support::Layout& layout) {
    AJob job = AJob().Module("language", support::Llama(), layout).Batch(4, 2);
    job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
    return Admitted(job, 0)->notes;
  };
  EXPECT_THAT(
      notes_of({.pp = 2}),
      Contains(StartsWith(
          "losing device node-0/0, or another of 2 kinds, costs all steps so far: no replica")));
  EXPECT_THAT(notes_of({.pp = 4}), Contains(HasSubstr(", or another of 4 kinds, ")));
  EXPECT_THAT(notes_of({}), Not(Contains(HasSubstr("another of"))));
  // With fewer stages it goes on, from copies in host memory.
  EXPECT_THAT(
      Admitted(AJob().Module("language", support::Llama(), {.pp = 2}).Batch(4, 2), 0)->notes,
      Not(Contains(HasSubstr("losing device"))));
  EXPECT_THAT(notes_of({.dp = 2, .pp = 2}), Not(Contains(HasSubstr("another of"))));
}

}  // namespace
}  // namespace phalanx::schedule

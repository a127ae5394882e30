// What is said of a job that can lose no device, by module.
#include "core/schedule/tolerance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/schedule/admitted.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;

AJob OfOneRank() { return AJob().Module("language", support::Llama()).Batch(4, 2).Steps(1000); }

// Of its state no device has a copy of what another has.
AJob WithOneHome() {
  AJob job = TwoReplicas();
  job.spec().recovery.state_copies = 1;
  return job;
}

job::Checkpoint Every(int64_t steps) { return {.directory = "checkpoints", .every = steps}; }

TEST(ToleranceTest, JobThatGoesOnBehindALoss_IsNotWarnedOf) {
  EXPECT_THAT(IntoleranceOf(TwoReplicas()), IsEmpty());
}

TEST(ToleranceTest, ModuleWithoutARankThatIsLeft_WaitsForIt) {
  AJob job = OfOneRank();
  EXPECT_THAT(IntoleranceOf(job),
              ElementsAre("language: the loss of its device stops the job: no replica of module "
                          "language is left without these ranks; it waits up to 10m "
                          "(recovery.hold) for what is lost, then fails, since it writes no "
                          "checkpoint before its last step"));
  job.spec().checkpoint = Every(50);
  EXPECT_THAT(IntoleranceOf(job),
              ElementsAre("language: the loss of its device stops the job: no replica of module "
                          "language is left without these ranks; it waits up to 10m "
                          "(recovery.hold) for what is lost, then begins again on other devices "
                          "with its last checkpoint"));
}

// What is left of it has all of its state, and the job a place for a checkpoint.
TEST(ToleranceTest, JobThatWaitsAndHasACheckpointSection_SavesItsState) {
  for (const int64_t every : {0, 1000}) {
    AJob job = TwoReplicas();
    job.spec().recovery.ladder = {job::Rung::kWait};
    job.spec().checkpoint.reset();
    EXPECT_THAT(IntoleranceOf(job), ElementsAre(HasSubstr("then fails, since it writes no")));
    job.spec().checkpoint = Every(every);
    EXPECT_THAT(IntoleranceOf(job),
                ElementsAre(HasSubstr("(recovery.hold) for what is lost, then saves its state and "
                                      "begins again with that on other devices")));
    job.spec().recovery.state_copies = 1;
    EXPECT_THAT(IntoleranceOf(job), ElementsAre(HasSubstr("then fails, since it writes no")));
  }
}

TEST(ToleranceTest, JobThatStartsFromACheckpoint_HasThatToGoBackTo) {
  AJob one = OfOneRank(), two = WithOneHome();
  for (AJob* job : {&one, &two}) {
    job->spec().checkpoint = Every(0);
    job->spec().checkpoint->resume_from = "/checkpoints/step-9";
  }
  EXPECT_THAT(IntoleranceOf(one),
              ElementsAre(HasSubstr("then begins again on other devices with the checkpoint that "
                                    "it starts from")));
  EXPECT_THAT(IntoleranceOf(two),
              ElementsAre("language: the loss of any one device sends the job back to the "
                          "checkpoint that it starts from: its state has one home (state_copies: "
                          "1)"));
  two.spec().checkpoint->resume_from = "latest";
  EXPECT_THAT(IntoleranceOf(two), ElementsAre(HasSubstr("that it starts from, if there is one: ")));
}

TEST(ToleranceTest, LadderWithoutARungForIt_EndsTheJob) {
  AJob job = OfOneRank();
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica, job::Rung::kRestart};
  EXPECT_THAT(IntoleranceOf(job),
              ElementsAre("language: the loss of its device ends the job: no replica of module "
                          "language is left without these ranks"));
  AJob two = TwoReplicas();
  two.spec().recovery.ladder = {};
  EXPECT_THAT(IntoleranceOf(two),
              ElementsAre("language: the loss of any one device ends the job: recovery.ladder "
                          "allows no rung for module language, replica 0"));
}

TEST(ToleranceTest, Spares_Count) {
  AJob job = OfOneRank();
  job.spec().resources.spares = 1;
  EXPECT_THAT(IntoleranceOf(job), IsEmpty());
  job.spec().recovery.ladder = {job::Rung::kWait};
  EXPECT_THAT(IntoleranceOf(job), testing::SizeIs(1)) << "no rung lets one take over";
}

TEST(ToleranceTest, StateOfOneHome_GoesBackToTheLastCheckpoint) {
  EXPECT_THAT(IntoleranceOf(WithOneHome()),
              ElementsAre("language: the loss of any one device sends the job back to its last "
                          "checkpoint: its state has one home (state_copies: 1)"));
}

TEST(ToleranceTest, StateOfOneHomeThatCannotGoBack_EndsTheJob) {
  AJob job = WithOneHome();
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  EXPECT_THAT(IntoleranceOf(job),
              ElementsAre("language: the loss of any one device ends the job: its state has one "
                          "home (state_copies: 1), and recovery.ladder has no restart"));
  for (const int64_t every : {0, 1000}) {
    job = WithOneHome();
    job.spec().checkpoint = Every(every);
    EXPECT_THAT(IntoleranceOf(job),
                ElementsAre("language: the loss of any one device ends the job: its state has one "
                            "home (state_copies: 1), and it writes no checkpoint before its last "
                            "step"));
  }
}

TEST(ToleranceTest, OnlyModulesThatTolerateNoLoss_AreNamed) {
  AJob job;
  job.Module("vision", support::ClipVision())
      .Module("language", support::Llama(), {.tp = 2, .dp = 2})
      .Edge("vision", "language", {.projector = 32})
      .Batch(16, 8)
      .Steps(1000);
  job.spec().checkpoint = Every(50);
  EXPECT_THAT(IntoleranceOf(job),
              ElementsAre("vision: the loss of its device stops the job: no replica of module "
                          "vision is left without these ranks; it waits up to 10m (recovery.hold) "
                          "for what is lost, then begins again on other devices with its last "
                          "checkpoint"));
}

// Mirrors of the language model's state are beside the only state of the encoder.
TEST(ToleranceTest, StateOfAModuleBesideIt_IsNamed) {
  AJob job;
  job.Module("vision", support::ClipVision(), {.tp = 4, .offset = 0})
      .Module("language", support::Llama(), {.tp = 2, .dp = 2, .offset = 0})
      .Edge("vision", "language", {.projector = 32})
      .Batch(16, 8)
      .Steps(1000);
  job.spec().checkpoint = Every(50);
  job.spec().recovery.state_home = job::StateHome::kMirror;
  EXPECT_THAT(IntoleranceOf(job),
              ElementsAre("vision: the loss of any one device sends the job back to its last "
                          "checkpoint: its state has one home (state_copies: 1)",
                          "language: the loss of any one device sends the job back to its last "
                          "checkpoint: the state of vision beside it has one home (state_copies: "
                          "1)"));
}

// `phalanx plan` and the job's events have them.
TEST(ToleranceTest, PlanThatIsAdmitted_HasTheSentencesAmongItsNotes) {
  EXPECT_THAT(Admitted(WithOneHome(), 0)->notes, IsSupersetOf(IntoleranceOf(WithOneHome())));
}

}  // namespace
}  // namespace phalanx::schedule

// What ranks derive from a document and a layout, held fast: ranks of two builds meet in one epoch
// only if they derive the same, and plan::kDerivation is how they know.
#include "core/plan/derivation.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/digest.h"
#include "core/plan/copies.h"
#include "core/plan/parameters.h"
#include "core/plan/reduction.h"
#include "core/plan/samples.h"
#include "core/schedule/builder.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/program.h"
#include "gtest/gtest.h"
#include "tests/support/layouts.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;
using support::AJob;
using support::ClipVision;
using support::Llama;
using support::NoArchitecture;
using support::Regressor;
using support::Whisper;

// Of the text below. Where it differs and the jobs of this file are the same as before, ranks of
// this build and of the last one would not agree: raise plan::kDerivation, and put it and the new
// digest here.
constexpr int32_t kHeldDerivation = 6;
constexpr char kHeldDigest[] = "f665b926a6d9e4e6fb024ce487a438ba";

std::vector<job::JobSpec> DerivedJobs() {
  return {
      AJob()
          .Module("vision", ClipVision({.layers = 4}), {.dp = 4})
          .Module("language", Llama({.layers = 8}), {.pp = 4, .offset = 0})
          .Edge("vision", "language", {.projector = 64})
          .Batch(16, 1),
      AJob()
          .Module("vision", ClipVision(), {.tp = 2, .dp = 3})
          .Module("audio", Whisper(), {.pp = 2, .frozen = true})
          .Module("language", Llama({.tied_head = true}), {.tp = 2, .dp = 2, .pp = 2})
          .Edge("vision", "language", {.projector = 48, .frozen = true})
          .Edge("audio", "language", {.projector = 48})
          .Batch(13, 2),
      AJob()
          .Module("vision", ClipVision(), {.dp = 4, .frozen = true})
          .Module("language", Llama({.heads = 4, .kv_heads = 2}),
                  {.tp = 2, .pp = 2, .offset = 0, .sequence = true})
          .Module("generator", Regressor(), {.dp = 2})
          .Edge("vision", "language")
          .Edge("language", "generator")
          .Batch(6, 1),
      AJob()
          .Module("vision", NoArchitecture())
          .Module("first", NoArchitecture(), {.dp = 2, .pp = 2})
          .Module("language", NoArchitecture(), {.dp = 2, .pp = 3})
          .Edge("vision", "first")
          .Edge("vision", "language")
          .Edge("first", "language")
          .Batch(10, 1),
      AJob().Module("language", Llama({.layers = 2}), {.tp = 4, .dp = 4}).Batch(16, 1),
  };
}

std::vector<job::Schedule> Schedules() {
  return {{.name = ScheduleName::k1F1B},
          {.name = ScheduleName::kInterleaved, .chunks = 2},
          {.name = ScheduleName::kZeroBubbleH1},
          {.name = ScheduleName::kZeroBubbleV, .chunks = 2},
          {.name = ScheduleName::kThreePhase},
          {.name = ScheduleName::kThreePhase, .chunks = 2, .encoder_chunks = 3}};
}

std::string Text(const plan::RankList& ranks) {
  return absl::StrJoin(ranks, " ",
                       [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value); });
}

std::string Text(const Program& program) {
  return absl::StrJoin(program, "\n", [](std::string* out, const Instruction& i) {
    absl::StrAppend(out, ToString(i), " ", i.ticket);
  });
}

std::string Text(const std::vector<plan::UnitRange>& runs) {
  std::string text;
  for (const plan::UnitRange& run : runs) absl::StrAppend(&text, " ", run.first, "+", run.count);
  return text;
}

std::string Text(const plan::Copy& copy) {
  std::string text = absl::StrCat("copy ", copy.lead.tp, " ", copy.lead_chunk, " ",
                                  copy.follower.tp, " ", copy.chunk);
  for (const plan::CopyRun& run : copy.runs) {
    absl::StrAppend(&text, " ", run.lead_offset, " ", run.offset, " ", run.count, " ", run.folds);
  }
  return text + "\n";
}

// Matrices, shares and copies of all chunks of a place.
std::string TextOfPlace(const plan::Plan& plan, const plan::Place& place) {
  std::string text;
  for (const plan::Copy& copy : plan::TiedCopies(plan, place)) text += Text(copy);
  const plan::ModulePlan& module = plan.modules[static_cast<size_t>(place.module)];
  for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
    const plan::StageParameters parameters = plan::ParametersOf(plan, place, chunk);
    for (const plan::LocalMatrix& matrix : parameters.matrices) {
      absl::StrAppend(&text, plan::RoleName(matrix.role), " ", matrix.layer, " ", matrix.rows, "x",
                      matrix.cols, matrix.transposed ? " transposed" : "", " at ", matrix.offset,
                      "\n");
    }
    for (const plan::Copy& copy : plan::CopiesInSlot(plan, place, chunk)) text += Text(copy);
    const plan::Reduction reduction = plan::ReductionOf(plan, place, chunk, parameters);
    for (const plan::ReducedBucket& bucket : reduction.buckets) {
      absl::StrAppend(&text, reduction.for_all ? "bucket for all" : "bucket", Text(bucket.own),
                      "\n");
      for (const plan::SharePeer& peer : bucket.peers) {
        absl::StrAppend(&text, peer.peer, " is given", Text(peer.give), " gives", Text(peer.take),
                        "\n");
      }
      for (const plan::SummedRun& sum : bucket.sums) {
        absl::StrAppend(&text, "sum ", sum.elements.first, " of ", absl::StrJoin(sum.sources, " "),
                        "\n");
      }
      for (const plan::MirrorPeer& mirror : bucket.to_mirrors)
        absl::StrAppend(&text, "mirrored by ", mirror.peer, Text(mirror.runs), "\n");
    }
  }
  return text;
}

// All that ranks of the plan have to agree on.
std::string Text(const plan::Plan& plan) {
  std::string text = absl::StrCat("samples ", absl::StrJoin(plan.sample_runs, " "), "\n");
  for (const plan::CommunicatorSpec& communicator : plan::Communicators(plan)) {
    absl::StrAppend(&text, communicator.name, ": ", Text(communicator.ranks), "\n");
  }
  for (int64_t m = 0; m < plan.microbatches; ++m) {
    const plan::MicrobatchSamples samples = plan::SamplesOfMicrobatch(plan, m);
    for (int32_t link = 0; link < static_cast<int32_t>(plan.links.size()); ++link) {
      for (const plan::LinkMessage& message : plan::LinkMessages(plan, link, samples)) {
        absl::StrAppend(&text, link, " ", m, ": ", message.from.value, " ", message.to.value, " ",
                        message.first, "+", message.count, " ", message.from_slice, "/",
                        message.from_slices, " ", message.to_slice, "/", message.to_slices,
                        message.flags ? " with flags" : "", "\n");
      }
    }
  }
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    absl::StrAppend(&text, "rank ", rank, "\n", Text(*BuildStepOf(plan, Rank{rank})), "\n",
                    Text(BuildEvaluationOf(plan, Rank{rank}, 3)), "\n");
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) text += TextOfPlace(plan, place);
  }
  return text;
}

// Healthy, and with a table of the first module that has holes and unequal widths.
std::vector<plan::Plan> Plans() {
  std::vector<plan::Plan> plans;
  int unequal = 0;
  for (job::JobSpec& spec : DerivedJobs()) {
    const size_t before = plans.size();
    for (const job::Schedule& schedule : Schedules()) {
      spec.schedule = schedule;
      const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
      if (!plan.ok()) continue;  // not every graph can have every schedule
      Prng prng(plans.size());
      plan::Layout damaged = plan->layout;
      support::Damage(prng, *plan, 0, damaged);
      plans.push_back(*plan);
      plans.push_back(*plan::Expand(spec, damaged));
      unequal += plans.back().replicas(0).EqualWidths(0) ? 0 : 1;
    }
    EXPECT_GT(plans.size(), before) << "a job that has no plan tells nothing";
  }
  EXPECT_GE(unequal, 3) << "else nothing tells of shares of unequal widths";
  return plans;
}

// Two replicas a node.
plan::Plan ThreeHomesOfEach() {
  AJob job = AJob().Module("language", Llama({.layers = 2}), {.dp = 6}).Batch(6, 1);
  job.spec().recovery.state_copies = 3;
  return *plan::MakePlan(job, plan::MakeCluster(3, 2), Epoch{1});
}

// Nodes of unequal size, and an order as losses leave it.
plan::Plan OutOfOrder() {
  AJob job = AJob().Module("language", Llama({.layers = 2}), {.dp = 7}).Batch(7, 1);
  job.spec().recovery.state_home = job::StateHome::kMirror;
  plan::Layout layout = plan::MakePlan(job, plan::MakeCluster(3, 3), Epoch{1})->layout;
  layout.modules[0].order = {0, 3, 1, 6, 4, 2, 5};
  return *plan::Expand(job.spec(), layout);
}

TEST(DerivationTest, WhatRanksDerive_IsThatOfItsVersion) {
  std::string text = Text(ThreeHomesOfEach()) + Text(OutOfOrder());
  for (const plan::Plan& plan : Plans()) text += Text(plan);
  EXPECT_EQ(plan::kDerivation, kHeldDerivation);
  EXPECT_EQ(Digest(text), kHeldDigest)
      << "if the jobs of this test are as before, ranks of this build and of the last one would "
         "not agree: raise plan::kDerivation, and put it and this digest here";
}

// So that a rank which derives otherwise, once it had been given the same plan, would hang the
// others: what the version is for.
TEST(DerivationTest, OtherCosts_AreOtherProgramsOfTheSameDocumentAndLayout) {
  job::JobSpec spec = DerivedJobs()[0];
  spec.schedule = {.name = ScheduleName::kZeroBubbleH1};
  const plan::Plan plan = PlanOf(spec);
  CostModel other = CostFromShapes(plan);
  for (PartCost& cost : other.parts[0]) {
    for (double* seconds : {&cost.forward, &cost.backward_input, &cost.backward_weight})
      *seconds *= 1.5;
  }
  EXPECT_NE(*BuildStepWithCosts(plan, other), Programs(plan));
}

}  // namespace
}  // namespace phalanx::schedule

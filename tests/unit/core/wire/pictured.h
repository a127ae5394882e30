// tests/unit/core/wire/pictured.h: plans with their simulated timelines, as pictures are drawn of.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/loss.h"
#include "core/plan/moves.h"
#include "core/plan/plan.h"
#include "core/schedule/choice.h"
#include "core/schedule/simulator.h"
#include "core/wire/job_yaml.h"
#include "core/wire/plan_codec.h"
#include "core/wire/plan_json.h"
#include "tests/support/paths.h"
#include "tests/support/specs.h"

namespace phalanx::wire {

struct Pictured {
  plan::Plan plan;
  schedule::Simulation preview;  // one rank of each class
};

inline plan::Plan MustPlan(const job::JobSpec& spec, int32_t nodes = 1, int32_t devices = 8) {
  auto plan = plan::MakePlan(spec, plan::MakeCluster(nodes, devices), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : plan::Plan();
}

inline job::JobSpec EncoderBesideLanguage() {
  return support::AJob()
      .Module("vision", support::ClipVision(), {.tp = 2, .dp = 2})
      .Module("language", support::Llama(), {.tp = 2, .pp = 2})
      .Edge("vision", "language", {.projector = 32})
      .Batch(6, 2);
}

// Four layers on two stages: three chunks a rank are too many.
inline plan::Plan Chosen() {
  auto plan = schedule::PlanJob(
      support::AJob()
          .Module("language", support::Llama({.layers = 4, .context = 4096}), {.pp = 2})
          .Batch(4, 1)
          .Schedule(job::ScheduleName::kAuto, 3),
      plan::MakeCluster(1, 2), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// Replica 1 of the encoder has lost its first stage; replica 2 is the faster one of the others.
inline plan::Plan WithoutAReplica() {
  const job::JobSpec spec = support::AJob()
                                .Module("vision", support::ClipVision(), {.dp = 3, .pp = 2})
                                .Module("language", support::Llama())
                                .Edge("vision", "language", {.projector = 32})
                                .Batch(6, 6);
  plan::Layout layout = MustPlan(spec).layout;
  layout.modules[0].changes = {{.dp = 1, .pp = 0, .ranks = {}}};
  layout.modules[0].speeds = {1, 0, 2};
  const absl::StatusOr<plan::Plan> plan = plan::Expand(spec, layout);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : plan::Plan();
}

// A pipeline of two stages whose first rank is lost, and that begins again on the other stage's.
struct Restarted {
  plan::Plan plan;
  PlanFigures figures;
};
inline Restarted MustRestart() {
  support::AJob job = support::AJob()
                          .Module("language", support::Llama({.layers = 4}), {.tp = 2, .pp = 2})
                          .Batch(8, 2);
  job.spec().recovery.ladder = {job::Rung::kRestart};
  const plan::Plan healthy = MustPlan(job, 1, 4);
  auto plan = plan::PlanWithout(healthy, plan::RankList{Rank{0}});
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  const schedule::Preview::Loss loss{.moves = plan::MovesBetween(healthy, *plan), .step_ratio = 2};
  return {*std::move(plan), {.loss = loss}};
}

inline std::string JsonOf(const plan::Plan& plan, const PlanFigures& figures = {}) {
  return PlanJson(ToProto(plan, figures));
}

inline Pictured MustPicture(const job::JobSpec& spec) {
  Pictured pictured{.plan = MustPlan(spec, 1, spec.World())};
  auto preview = schedule::SimulatePlan(pictured.plan, schedule::CostFromShapes(pictured.plan));
  EXPECT_TRUE(preview.ok()) << preview.status();
  if (preview.ok()) pictured.preview = *std::move(preview);
  return pictured;
}

// A job file below examples/.
inline job::JobSpec MustReadExample(const std::string& file) {
  std::ifstream stream(tests::SourceDir() + "/examples/" + file);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  auto job = ReadJobFile(text, job::Purpose::kPlan);
  EXPECT_TRUE(job.ok()) << file << ": " << job.status();
  return job.ok() ? std::move(job->spec) : job::JobSpec();
}

// Every job file below examples/.
inline std::vector<std::string> Examples() {
  const std::filesystem::path folder = tests::SourceDir() + "/examples";
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml")
      files.push_back(entry.path().lexically_relative(folder));
  }
  std::sort(files.begin(), files.end());
  EXPECT_FALSE(files.empty());
  return files;
}

}  // namespace phalanx::wire

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

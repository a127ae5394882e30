// tests/unit/coordinator/runtime/planning_jobs.h: a small job and the devices that it is planned
// on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "coordinator/runtime/planning.h"
#include "core/base/violation.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/plan.h"
#include "core/schedule/choice.h"
#include "core/wire/job_yaml.h"

namespace phalanx::coordinator {

// Two ranks of an encoder and two of a language model.
inline constexpr char kText[] = R"(metadata: {name: demo}
spec:
  steps: 10
  modules:
    - name: vision
      architecture: {family: clip_vision, hidden_size: 64, layers: 2, heads: 4, mlp_size: 128, image_size: 32, patch_size: 16, block: 32}
      parallel: {ranks: 2}
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, mlp_size: 128, vocabulary: 256, context: 64, block: 32}
      parallel: {ranks: 2, tp: 2}
  edges:
    - {from: vision, to: language, projector: {hidden_size: 64}}
  batch: {global: 4, micro: 2}
  data: {shards: "a-{0..1}.tar", tokenizer: t.model}
)";
inline const JobRequest kRequest = {.document = {.text = kText, .directory = "/jobs"}};
inline const Placement kPlacement = {{"n", {0, 1}}, {"m", {4, 2}}};

// Four stages, whose schedule is open.
inline const Document kOpen = {.text = R"(metadata: {name: open}
spec:
  steps: 1
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 8, heads: 4, mlp_size: 128, vocabulary: 64, context: 16}
      parallel: {ranks: 4, pp: 4}
  batch: {global: 8, micro: 1}
  schedule: {name: auto}
  data: {shards: a.tar, tokenizer: a.model}
)",
                               .directory = "/data"};

inline plan::Plan PlanOf(const Document& document) {
  auto read = wire::ReadJobFile(document.text, job::Purpose::kSubmit);
  EXPECT_TRUE(read.ok()) << read.status();
  auto plan = schedule::PlanJob(read->spec, plan::MakeCluster(1, 4), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

inline Document With(const std::string& from, const std::string& to) {
  return {absl::StrReplaceAll(kText, {{from, to}}), "/jobs"};
}

inline std::vector<std::string> Wrong(const absl::Status& status) {
  std::vector<std::string> lines;
  for (const Violation& violation : ViolationsOf(status)) lines.push_back(ToString(violation));
  return lines;
}

// Bytes that each rank needs.
inline std::vector<int64_t> Needs() {
  const auto job = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  const auto plan = schedule::PlanJob(job->spec, plan::MakeCluster(1, 4), Epoch{1});
  std::vector<int64_t> needs;
  for (const plan::MemoryEstimate& estimate : plan::EstimateMemory(*plan)) {
    needs.push_back(estimate.total());
  }
  return needs;
}

inline NodeView ANode(const std::string& name, std::vector<int64_t> memory) {
  return {.name = name,
          .connected = true,
          .device_jobs = std::vector<JobId>(2),
          .device_memory = std::move(memory)};
}

// `order`, of this job.
inline absl::StatusOr<PlanSummary> PlanJob(const JobRequest& request, ComputePlan order) {
  order.request = std::make_shared<const JobRequest>(request);
  return PlanJobOf(order);
}

}  // namespace phalanx::coordinator

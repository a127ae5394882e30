#include "tests/sim/scale/workload.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "core/wire/job_yaml.h"

namespace phalanx::scale {
namespace {

std::string RecoveryOf(Policy policy) {
  switch (policy) {
    case Policy::kDropReplica:
      return "ladder: [drop-replica]";
    case Policy::kParity:
      return "ladder: [shrink, drop-replica], widths: parity";
    case Policy::kOwn:
      return "ladder: [shrink, drop-replica], widths: own";
    case Policy::kSpares:
      return "ladder: [spare, drop-replica]";
  }
  return "";
}

}  // namespace

std::vector<Policy> PoliciesInForce() {
  return {Policy::kDropReplica, Policy::kParity, Policy::kOwn};
}

std::string NameOf(Policy policy) {
  switch (policy) {
    case Policy::kDropReplica:
      return "drop-replica";
    case Policy::kParity:
      return "parity";
    case Policy::kOwn:
      return "own widths";
    case Policy::kSpares:
      return "drop-replica, idle devices as spares";
  }
  return "";
}

Workload PaperWorkload() {
  return {.nodes = 10'000,
          .tp = 32,
          .pp = 8,
          .dp = 128,
          .samples = 8,
          .architecture =
              "{family: llama, hidden_size: 20480, layers: 100, heads: 128, mlp_size: 53248, "
              "vocabulary: 128256, context: 16384}",
          .device_bytes = int64_t{189} * 1'000'000'000,
          .node_bytes = int64_t{2} << 40};
}

Workload SmallWorkload() {
  return {.nodes = 24,
          .tp = 8,
          .pp = 2,
          .dp = 4,
          .samples = 8,
          .architecture =
              "{family: llama, hidden_size: 8192, layers: 64, heads: 64, mlp_size: "
              "24576, vocabulary: 128256, context: 8192}",
          .device_bytes = int64_t{189} * 1'000'000'000,
          .node_bytes = int64_t{2} << 40};
}

std::vector<int32_t> ReplicasOfJobs(const Workload& workload) {
  std::vector<int32_t> jobs;
  int32_t left = workload.devices() / workload.replica_ranks();
  while (left > 0) {
    jobs.push_back(std::min(left, workload.dp));
    left -= jobs.back();
  }
  return jobs;
}

std::string Document(const Workload& workload, Policy policy, const std::string& name,
                     int32_t replicas, int64_t samples) {
  return absl::StrCat(
      "metadata: {name: ", name, "}\nspec:\n  steps: 1000000000\n  modules:\n",
      "    - name: language\n      architecture: ", workload.architecture,
      "\n      parallel: {ranks: ", replicas * workload.replica_ranks(), ", tp: ", workload.tp,
      ", pp: ", workload.pp, "}\n  batch: {global: ", replicas * samples,
      ", micro: 1}\n  schedule: {name: 1f1b}\n  data: {shards: a.tar, tokenizer: t.model}\n",
      "  resources: {device: gpu}\n  recovery: {", RecoveryOf(policy),
      ", budget: {total: 1000000000, without_progress: 1000000000}}\n");
}

job::JobSpec SpecOf(const std::string& document) {
  const absl::StatusOr<job::ReadJob> read = wire::ReadJobFile(document, job::Purpose::kSubmit);
  if (!read.ok()) {
    std::fprintf(stderr, "%s%s\n", document.c_str(), read.status().ToString().c_str());
    std::abort();
  }
  return read->spec;
}

}  // namespace phalanx::scale

#include "coordinator/runtime/planning.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/plan/plan.h"
#include "core/schedule/choice.h"
#include "core/schedule/simulator.h"
#include "core/wire/job_yaml.h"
#include "core/wire/plan_json.h"

namespace phalanx::coordinator {
namespace {

std::string Resolve(const std::string& directory, const std::string& path) {
  if (path.empty() || absl::StartsWith(path, "/")) return path;
  return absl::StrCat(directory, absl::EndsWith(directory, "/") ? "" : "/", path);
}

plan::Cluster ClusterOf(const Placement& placement) {
  plan::Cluster cluster;
  for (const NodeDevices& part : placement) {
    for (int32_t device : part.devices)
      cluster.devices.push_back({.node = part.node, .index = device});
  }
  return cluster;
}

}  // namespace

absl::StatusOr<JobRequestPtr> ReadRequest(Document document) {
  if (!absl::StartsWith(document.directory, "/") ||
      document.directory.find('\0') != std::string::npos) {
    return ViolationsStatus({{.field = "document.directory",
                              .value = document.directory,
                              .rule = "must be an absolute path"}});
  }
  ASSIGN_OR_RETURN(job::ReadJob read, wire::ReadJobFile(document.text, job::Purpose::kSubmit));
  const job::JobSpec& spec = read.spec;
  JobRequest request{.name = spec.name,
                     .labels = spec.labels,
                     .node_selector = spec.resources.node_selector,
                     .output = Resolve(document.directory, spec.output),
                     .warnings = std::move(read.warnings),
                     .steps = spec.steps,
                     .corrupt_max = spec.data.has_value() ? spec.data->corrupt_max : 0,
                     .priority = spec.priority,
                     .world = spec.World(),
                     .devices = std::max(spec.resources.devices, spec.World()),
                     .device_kind = spec.resources.device};
  request.document = std::move(document);
  return std::make_shared<const JobRequest>(std::move(request));
}

absl::StatusOr<PlanSummary> PlanDocument(const Document& document, const Placement& placement,
                                         Epoch epoch) {
  ASSIGN_OR_RETURN(const job::ReadJob read,
                   wire::ReadJobFile(document.text, job::Purpose::kSubmit));
  const plan::Cluster cluster = ClusterOf(placement);
  ASSIGN_OR_RETURN(const plan::Plan plan, schedule::PlanJob(read.spec, cluster, epoch));
  PlanSummary summary{.digest = plan.digest};
  for (int32_t rank = 0; rank < static_cast<int32_t>(cluster.devices.size()); ++rank) {
    if (rank >= plan.world || plan.PlacesOf(Rank{rank}).empty()) summary.idle_ranks.insert(rank);
  }
  return summary;
}

absl::StatusOr<std::string> PlanJson(const Document& document, const std::vector<NodeView>& nodes) {
  ASSIGN_OR_RETURN(const job::ReadJob read, wire::ReadJobFile(document.text, job::Purpose::kPlan));
  const JobRequest request{.node_selector = read.spec.resources.node_selector,
                           .devices = std::max(read.spec.resources.devices, read.spec.World()),
                           .device_kind = read.spec.resources.device};
  NodeTable empty;
  int64_t devices = 0;
  for (const NodeView& view : nodes) {
    Node node{.name = view.name,
              .session = SessionId{view.connected ? 1u : 0u},
              .device_kind = view.device_kind,
              .device_jobs = std::vector<JobId>(view.device_jobs.size()),
              .labels = view.labels,
              .draining = view.draining};
    if (node.Schedulable() && Matches(node, request)) devices += node.FreeDevices();
    empty.emplace(view.name, std::move(node));
  }
  const std::optional<Placement> placement = ChoosePlacement(empty, {}, request);
  if (!placement.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job needs ", request.devices,
                     " devices; the connected nodes that match have ", devices));
  }
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   schedule::PlanJob(read.spec, ClusterOf(*placement), Epoch{1}));
  ASSIGN_OR_RETURN(const schedule::Simulation simulation,
                   schedule::SimulatePlan(plan, schedule::CostFromShapes(plan)));
  const wire::PlanFigures figures{.bubble = simulation.bubble,
                                  .lower_bound = simulation.lower_bound};
  return wire::PlanJson(plan, figures);
}

}  // namespace phalanx::coordinator

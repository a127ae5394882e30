// coordinator/status/status_json.h: what the status page shows, as JSON. Times are seconds since
// 1970.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/machine/incident.h"
#include "coordinator/runtime/board.h"
#include "coordinator/status/queue_watch.h"

namespace phalanx::coordinator {

struct Overview {
  Gauges counts;
  std::vector<NodeView> nodes;   // the first of them
  std::vector<JobViewPtr> jobs;  // newest first
  QueueWatch::Spots queue;       // of those of them of which it is known
};
std::string OverviewJson(const Overview& overview);

struct JobPage {
  JobViewPtr job;
  std::vector<CurvePoint> curve;
  std::vector<IncidentPtr> incidents;
  std::vector<JobEvent> events;
  std::shared_ptr<const EvaluationReport> evaluation;  // null: none
  QueueWatch::Spots queue;                             // of the job, where it is known
};
std::string JobJson(const JobPage& page);

}  // namespace phalanx::coordinator

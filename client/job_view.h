// client/job_view.h: jobs, nodes and what happened to them, for people and for scripts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/format.h"
#include "phalanx/v1/common.pb.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

// "job-7".
std::string JobName(const v1::JobStatus& job);
std::string PhaseWord(v1::JobPhase phase);
bool IsTerminal(v1::JobPhase phase);

// `header`: where it is a table, it begins with the names of its columns; here and below.
void PrintJobs(const std::vector<v1::JobStatus>& jobs, Format format, bool header, absl::Time now,
               std::ostream& out);
// Such a table, or a wide one.
void PrintRows(const std::vector<v1::JobStatus>& jobs, Format format, bool header, absl::Time now,
               std::ostream& out);
// One job: the object for json and yaml, else a row.
void PrintJob(const v1::JobStatus& job, Format format, bool header, absl::Time now,
              std::ostream& out);
// The whole story of one job, with the variables of its document, if it has one; `incidents`, or
// why they are not known, count where it failed.
void DescribeJob(const v1::JobStatus& job, const std::vector<std::string>& reasons,
                 const absl::StatusOr<std::vector<v1::Incident>>& incidents,
                 const std::vector<v1::JobEvent>& events, absl::Time now, std::ostream& out);
void PrintEvents(const std::vector<v1::JobEvent>& events, Format format, bool header,
                 std::ostream& out);
void PrintNodes(const std::vector<v1::NodeStatus>& nodes, Format format, bool header,
                absl::Time now, std::ostream& out);
// Validation loss beside the uniform guess, decoded captions beside the true ones.
void PrintEvaluation(const v1::EvaluationReport& evaluation, std::ostream& out);
// What ended a job that did not succeed, a line each.
std::vector<std::string> FailureLines(const v1::JobStatus& job);

}  // namespace phalanx::client

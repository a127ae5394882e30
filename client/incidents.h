// client/incidents.h: what befell a job, as the coordinator tells it.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/format.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::client {

// Oldest first, the last 64. Errors: those of the call.
absl::StatusOr<std::vector<v1::Incident>> ListIncidents(Connection& connection,
                                                        const std::string& job);

// What speaks for the cause of a job's failure, a line each, and how sure that is: "evidence: ...".
// None where it failed before it trained.
std::vector<std::string> EvidenceLines(const v1::JobStatus& job,
                                       const std::vector<v1::Incident>& incidents);

// Of a job that failed: the device, where a rank is to blame, and what became of each loss and
// return before, the last 8; or that nothing came before. `told`: of ListIncidents; without them it
// says why nobody knows.
void PrintTried(const v1::JobStatus& job, const absl::StatusOr<std::vector<v1::Incident>>& told,
                std::ostream& out);

// Oldest first, the last 64.
int IncidentsList(Connection& connection, const std::string& job, Format format, Io& io);

struct ShowIncidentOptions {
  std::string job;
  int64_t number = 0;
  Format format = Format::kTable;
  std::string svg;  // file for a picture of its timeline, "-" for standard output; empty: none
};
int IncidentsShow(Connection& connection, const ShowIncidentOptions& options, Io& io);

}  // namespace phalanx::client

// client/incidents.h: what befell a job, as the coordinator tells it.
#pragma once

#include <cstdint>
#include <string>

#include "client/connection.h"
#include "client/format.h"

namespace phalanx::client {

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

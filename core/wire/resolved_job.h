// core/wire/resolved_job.h: job files in which the planner lays out modules (`parallel: auto`).
//
// The planner chooses once, before the job is planned: the fastest layout of those modules that a
// search finds (core/schedule/search.h) for a nominal device and samples of one item, the layout of
// the others, batch.micro, recomputation and a named schedule being as they are written, or less of
// it. The choice is written into the document, and nobody searches again.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/job/job_reader.h"

namespace phalanx::wire {

// Of the devices that the job may get; all are taken to be alike.
struct SearchedDevices {
  int32_t node_devices = 8;   // of each node
  int64_t device_memory = 0;  // bytes; 0: not known, which holds anything
};

struct ResolvedJob {
  std::string text;  // what was given, where nothing was left to the planner
  job::ReadJob job;
};

// `job`: what `text` reads as, for `purpose`. A function of its arguments.
// Errors: InvalidArgument with violations, as those of a search.
absl::StatusOr<ResolvedJob> Resolve(std::string text, job::ReadJob job, job::Purpose purpose,
                                    const SearchedDevices& devices);

}  // namespace phalanx::wire

// core/wire/resolved_job.h: job files in which the planner lays out modules (`parallel: auto`).
//
// The planner chooses once, before the job is planned: the fastest layout of those modules that a
// search finds (core/schedule/search.h) for the devices and the data that are known then, the
// layout of the others, batch.micro, recomputation and a named schedule being as they are written,
// or less of it. The choice is written into the document, and nobody searches again: who plans the
// job later, on other devices or with other profiles, plans what is written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/job/data_shape.h"
#include "core/job/job_reader.h"
#include "core/schedule/device_kinds.h"
#include "core/schedule/search.h"

namespace phalanx::wire {

// Of the devices that the job may get; all are taken to be alike.
struct SearchedDevices {
  schedule::SearchThreads threads;
  int32_t node_devices = 8;     // of each node
  int64_t device_memory = 0;    // bytes; 0: not known, which holds anything
  schedule::DeviceCosts costs;  // of a kind, or nominal
};

struct ResolvedJob {
  std::string text;  // what was given, where nothing was left to the planner
  job::ReadJob job;
  // A sentence for people: which layout was chosen, and what the search counted with. Empty where
  // nothing was left to the planner.
  std::string note;
};

// `job`: what `text` reads as, for `purpose`. A search counts with batch.items and
// batch.labelled_share where they are written, else with what `data` says of the training set, else
// with what they are when left out. A share that it takes of `data` is written into the text, since
// plans count with it, too. `go_on`: that of the search. A function of its arguments else. Errors:
// InvalidArgument with violations, as those of a search; what `go_on` says.
absl::StatusOr<ResolvedJob> Resolve(std::string text, job::ReadJob job, job::Purpose purpose,
                                    const SearchedDevices& devices,
                                    const std::optional<job::DataShape>& data = std::nullopt,
                                    std::function<absl::Status()> go_on = nullptr);

}  // namespace phalanx::wire

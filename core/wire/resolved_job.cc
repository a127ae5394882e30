#include "core/wire/resolved_job.h"

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/schedule/search.h"
#include "core/wire/job_yaml.h"
#include "core/wire/search_text.h"

namespace phalanx::wire {

absl::StatusOr<ResolvedJob> Resolve(std::string text, job::ReadJob job, job::Purpose purpose,
                                    const SearchedDevices& devices) {
  if (!job.spec.HasOpenLayout()) return ResolvedJob{std::move(text), std::move(job)};
  std::vector<bool> open;
  for (const job::Module& module : job.spec.modules) open.push_back(module.parallel.automatic);
  ASSIGN_OR_RETURN(const schedule::SearchResult found,
                   schedule::SearchLayouts(job.spec, {.devices = job.spec.resources.devices,
                                                      .node_devices = devices.node_devices,
                                                      .device_memory = devices.device_memory,
                                                      .open = open,
                                                      .keep_written = true}));
  ResolvedJob resolved;
  ASSIGN_OR_RETURN(resolved.text, WithLayoutOf(text, found.best.front().spec, open));
  ASSIGN_OR_RETURN(resolved.job, ReadJobFile(resolved.text, purpose));
  return resolved;
}

}  // namespace phalanx::wire

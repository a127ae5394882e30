#include "worker/rank/trace_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "core/wire/timeline_json.h"

namespace phalanx::rank {

int64_t TraceStep(const job::JobSpec& spec) {
  if (!spec.trace) return 0;
  return spec.steps > 2 ? spec.steps - 1 : spec.steps;
}

absl::StatusOr<std::string> WriteTrace(const std::string& output, const plan::Plan& plan,
                                       const std::vector<schedule::TimedInstruction>& timeline) {
  const std::string path = absl::StrCat(output, "/trace.json"), aside = absl::StrCat(path, ".new");
  std::ofstream file(aside, std::ios::trunc | std::ios::binary);
  file << wire::TraceJson(plan, timeline, TraceStep(plan.spec));
  file.close();
  if (!file || std::rename(aside.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("write ", path, ": ", std::strerror(errno)));
  }
  return path;
}

}  // namespace phalanx::rank

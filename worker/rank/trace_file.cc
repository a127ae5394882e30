#include "worker/rank/trace_file.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/posix/whole_file.h"
#include "core/wire/timeline_json.h"

namespace phalanx::rank {

int64_t TraceStep(const job::JobSpec& spec) {
  if (!spec.trace) return 0;
  return spec.steps > 2 ? spec.steps - 1 : spec.steps;
}

absl::StatusOr<std::string> WriteTrace(const std::string& output, const plan::Plan& plan,
                                       const std::vector<schedule::TimedInstruction>& timeline,
                                       const std::vector<schedule::TimedOperation>& operations,
                                       const std::vector<std::string>& folders) {
  const std::string path = absl::StrCat(output, "/trace.json");
  RETURN_IF_ERROR(WriteWholeFile(
      path, wire::TraceJson(plan, timeline, TraceStep(plan.spec), operations), 0666, folders));
  return path;
}

}  // namespace phalanx::rank

// core/job/path_fields.h: the fields of a job that name files and folders of its nodes. Whoever
// judges paths goes by this list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/job/job_spec.h"

namespace phalanx::job {

enum class PathUse : uint8_t { kRead, kWrite };

struct PathField {
  std::string field;                    // "spec.modules[1].weights"
  absl::Span<const std::string> paths;  // as written; relative ones begin at the job's folder
  PathUse use = PathUse::kRead;
};

// Those that the spec has; valid as long as the spec. What names no file (`resume_from: latest`) is
// none.
std::vector<PathField> PathFieldsOf(const JobSpec& spec);

}  // namespace phalanx::job

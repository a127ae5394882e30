// core/job/job_reader.h: from a document tree to a JobSpec, or to everything wrong with it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/violation.h"
#include "core/job/job_spec.h"
#include "core/job/tree.h"

namespace phalanx::job {

enum class Purpose : uint8_t {
  kPlan,    // data and architectures may be missing; nothing is refused for not being trained yet
  kSubmit,  // complete, and within what this release trains
  // As kSubmit, of a job that was: it keeps variables that may not be set any more (`env`), which
  // ranks then run without.
  kAccepted,
};

struct ReadJob {
  JobSpec spec;
  std::vector<std::string> warnings;  // "spec.recovery.ladder: not in force yet", ...
};

// Errors: InvalidArgument with every violation at once (ViolationsOf), in the document's order.
absl::StatusOr<ReadJob> ReadJobSpec(const Tree& document, Purpose purpose);

// The spec as a document with every default written out, in the order of the job file's reference.
Tree WriteJobSpec(const JobSpec& spec);

// Everything of the spec that ranks act on, so not labels, priority and other matters of the queue:
// two specs with the same text run alike. Numbers are in full precision.
std::string ActedText(const JobSpec& spec);

}  // namespace phalanx::job

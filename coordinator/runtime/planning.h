// coordinator/runtime/planning.h: job documents and plans for the coordinator.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

// What the coordinator needs to know of a document, which must be complete and within what this
// release trains. Paths are resolved against the document's directory.
// Errors: InvalidArgument with every violation.
absl::StatusOr<JobRequestPtr> ReadRequest(Document document);

// PlanFunction of the machine: reads the document again and plans it on exactly these devices.
absl::StatusOr<PlanSummary> PlanDocument(const Document& document, const Placement& placement,
                                         Epoch epoch);

// The plan that the document's job would get on these nodes if all their devices were free, in the
// form of `phalanx plan -o json`. Errors: InvalidArgument with every violation; ResourceExhausted
// if the nodes have not enough devices.
absl::StatusOr<std::string> PlanJson(const Document& document, const std::vector<NodeView>& nodes);

}  // namespace phalanx::coordinator

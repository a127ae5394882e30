#include "coordinator/machine/policy.h"

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

Decision DecideNodeLoss(const Part& part, const Node& node) {
  if (part.assigned) {
    return {Rung::kFail, absl::StrCat("ranks on node ", part.node,
                                      " may have trained, and this release does not move them")};
  }
  if (!node.connected()) return {Rung::kFail, absl::StrCat("node ", part.node, " is away")};
  return {Rung::kWait, absl::StrCat("no rank had started on node ", part.node,
                                    ", which is back and prepares the data again")};
}

}  // namespace phalanx::coordinator

#include "coordinator/machine/policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

Decision Decide(const Policy& policy, const Run& run, absl::Span<const Loss> losses,
                const NodeTable& cluster) {
  for (const Loss& loss : losses) {
    if (!job::TraitsOf(loss.kind).retryable) {
      return {Rung::kFail, absl::StrCat(job::ToString(loss.kind), " would come again")};
    }
  }
  for (const Loss& loss : losses) {
    const bool node_loss = loss.kind == job::FailureKind::kNodeLost;
    if (!node_loss) {
      return {Rung::kFail,
              absl::StrCat("this release does not recover from ", job::ToString(loss.kind))};
    }
    const auto part = std::find_if(run.parts.begin(), run.parts.end(),
                                   [&](const Part& p) { return p.node == loss.node; });
    if (part != run.parts.end() && part->assigned) {
      return {Rung::kFail, absl::StrCat("ranks on node ", loss.node,
                                        " may have trained, and this release does not move them")};
    }
    const auto node = cluster.find(loss.node);
    if (node == cluster.end() || !node->second.connected()) {
      return {Rung::kFail, absl::StrCat("node ", loss.node, " is away")};
    }
  }
  if (!policy.may_wait) return {Rung::kFail, "the job may not wait"};
  return {Rung::kWait, absl::StrCat("no rank had started on node ", losses.front().node,
                                    ", which is back and prepares the data again")};
}

}  // namespace phalanx::coordinator

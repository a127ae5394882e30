#include "core/schedule/overlap.h"

#include <algorithm>

#include "core/plan/activations.h"

namespace phalanx::schedule {

bool StaysOnRanks(const plan::Plan& plan, const plan::Link& link) {
  const plan::ModulePlan& from = plan.modules[static_cast<size_t>(link.from.module)];
  const plan::ModulePlan& to = plan.modules[static_cast<size_t>(link.to.module)];
  if (from.speeds != to.speeds || from.replicas.replicas() != to.replicas.replicas() ||
      from.replicas.cp() != to.replicas.cp())
    return false;
  for (int32_t dp = 0; dp < from.replicas.replicas(); ++dp) {
    for (int32_t cp = 0; cp < from.replicas.cp(); ++cp) {
      if (plan.TensorGroup(link.from.module, dp, link.from.stage, cp) !=
          plan.TensorGroup(link.to.module, dp, link.to.stage, cp))
        return false;
    }
  }
  return true;
}

std::vector<bool> SumsBeginInside(const plan::Plan& plan, const Pipeline& pipeline) {
  std::vector<bool> talks(pipeline.classes.size(), false);
  for (size_t i = 0; i < plan.links.size(); ++i) {
    if (StaysOnRanks(plan, plan.links[i])) continue;
    const LinkParts& ends = pipeline.links[i];
    for (const int32_t part : {ends.from, ends.to}) {
      for (const int32_t index : pipeline.parts[static_cast<size_t>(part)].classes)
        talks[static_cast<size_t>(index)] = true;
    }
  }
  std::vector<bool> inside;
  for (const Part& part : pipeline.parts) {
    const bool quiet = std::none_of(part.classes.begin(), part.classes.end(), [&](int32_t index) {
      return talks[static_cast<size_t>(index)];
    });
    inside.push_back(quiet && part.tied < 0 &&
                     plan::BackwardIsOne(plan, {part.module, part.stage, part.chunk}));
  }
  return inside;
}

}  // namespace phalanx::schedule

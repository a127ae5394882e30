#include "tests/support/layouts.h"

#include <utility>

namespace phalanx::support {

void Damage(Prng& prng, const plan::Plan& plan, int32_t module, plan::Layout& layout) {
  plan::ModuleLayout& damaged = layout.modules[static_cast<size_t>(module)];
  const plan::ReplicaTable& table = plan.replicas(module);
  const auto stays = static_cast<int32_t>(prng.Below(static_cast<uint64_t>(table.replicas())));
  for (int32_t dp = 0; dp < table.replicas(); ++dp) {
    for (int32_t pp = 0; pp < table.stages(); ++pp) {
      if (prng.Below(2) == 0) continue;
      plan::SlotChange change{.dp = dp, .pp = pp};
      const bool may_end = dp != stays && prng.Below(6) == 0;
      for (Rank rank : table.Ranks(dp, pp)) {
        if (!may_end && (change.ranks.empty() || prng.Below(3) > 0)) change.ranks.push_back(rank);
      }
      damaged.changes.push_back(std::move(change));
    }
  }
  for (int32_t dp = 0; dp < table.replicas(); ++dp) {
    damaged.speeds.push_back(1 + static_cast<int64_t>(prng.Below(9)));
  }
}

}  // namespace phalanx::support

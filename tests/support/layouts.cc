#include "tests/support/layouts.h"

#include <cstddef>
#include <set>
#include <utility>

namespace phalanx::support {

void Damage(Prng& prng, const plan::Plan& plan, int32_t module, plan::Layout& layout) {
  plan::ModuleLayout& damaged = layout.modules[static_cast<size_t>(module)];
  const plan::ReplicaTable& table = plan.replicas(module);
  const auto stays = static_cast<int32_t>(prng.Below(static_cast<uint64_t>(table.replicas())));
  std::set<int32_t> absent;
  for (int32_t dp = 0; dp < table.replicas(); ++dp) {
    for (int32_t pp = 0; pp < table.stages(); ++pp) {
      if (prng.Below(2) == 0) continue;
      plan::SlotChange change{.dp = dp, .pp = pp};
      const bool may_end = dp != stays && prng.Below(6) == 0;
      if (may_end) absent.insert(dp);
      for (Rank rank : table.Ranks(dp, pp)) {
        if (!may_end && (change.ranks.empty() || prng.Below(3) > 0)) change.ranks.push_back(rank);
      }
      damaged.changes.push_back(std::move(change));
    }
  }
  for (int32_t dp = 0; dp < table.replicas(); ++dp) {
    damaged.speeds.push_back(1 + static_cast<int64_t>(prng.Below(9)));
    if (!absent.contains(dp)) {
      const uint64_t at = prng.Below(damaged.order.size() + 1);
      damaged.order.insert(damaged.order.begin() + static_cast<std::ptrdiff_t>(at), dp);
    }
  }
}

}  // namespace phalanx::support

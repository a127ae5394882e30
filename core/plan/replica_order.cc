#include "core/plan/replica_order.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <tuple>
#include <utility>

#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

// How much of which new share the ranks of a replica have that would be its primary homes.
struct Held {
  int32_t replica = 0;
  int64_t amount = 0;
};
using HeldOfShares = std::vector<std::vector<Held>>;

int64_t AmountOf(const std::vector<Held>& share, int32_t replica) {
  for (const Held& held : share) {
    if (held.replica == replica) return held.amount;
  }
  return 0;
}

// Of each share that there will be. A bucket is as long as there are old shares times new ones.
HeldOfShares WhoHas(const Plan& before, int32_t module, const ReplicaTable& left) {
  const ReplicaTable& table = before.replicas(module);
  RankList group;
  for (const int32_t dp : table.order()) {
    for (int32_t cp = 0; cp < table.cp(); ++cp) group.push_back(table.At(dp, 0, cp, 0));
  }
  const std::vector<RankList> homes = HomesOf(before, module, group);
  const auto old_count = static_cast<int64_t>(group.size());
  const int64_t cps = left.cp(), new_count = left.present_replicas() * cps;
  HeldOfShares shares(static_cast<size_t>(left.present_replicas()));
  for (int64_t share = 0; share < new_count; ++share) {
    const int64_t first = share * old_count, end = first + old_count;
    std::vector<Held>& of_share = shares[static_cast<size_t>(share / cps)];
    for (int64_t old = first / new_count; old * new_count < end; ++old) {
      const int64_t amount =
          std::min(end, (old + 1) * new_count) - std::max(first, old * new_count);
      for (Rank home : homes[static_cast<size_t>(old)]) {
        const std::optional<ReplicaTable::Position> at = table.PositionOf(home);
        if (!at.has_value() || at->cp != share % cps || !left.Present(at->dp)) continue;
        const auto known = std::find_if(of_share.begin(), of_share.end(),
                                        [&](const Held& held) { return held.replica == at->dp; });
        if (known == of_share.end()) {
          of_share.push_back({at->dp, amount});
        } else {
          known->amount += amount;
        }
      }
    }
  }
  return shares;
}

constexpr int32_t kNobody = -1;

// The largest amounts first; of equal ones what is nearest to ascending order. Who has nothing that
// is still free takes the shares that are left over.
std::vector<int32_t> Deal(const HeldOfShares& shares, const std::vector<int32_t>& left,
                          std::vector<int32_t>* share_of) {
  using Choice = std::tuple<int64_t, int32_t, int32_t, int32_t>;  // -amount, way, share, replica
  std::vector<int32_t> ascending(share_of->size(), kNobody);
  for (size_t i = 0; i < left.size(); ++i)
    ascending[static_cast<size_t>(left[i])] = static_cast<int32_t>(i);
  std::vector<Choice> choices;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto share = static_cast<int32_t>(i);
    for (const Held& held : shares[i]) {
      const int32_t way = std::abs(ascending[static_cast<size_t>(held.replica)] - share);
      choices.emplace_back(-held.amount, way, share, held.replica);
    }
  }
  std::sort(choices.begin(), choices.end());
  std::vector<int32_t> order(left.size(), kNobody);
  const auto give = [&](int32_t share, int32_t replica) {
    order[static_cast<size_t>(share)] = replica;
    (*share_of)[static_cast<size_t>(replica)] = share;
  };
  for (const auto& [amount, way, share, replica] : choices) {
    if (order[static_cast<size_t>(share)] == kNobody &&
        (*share_of)[static_cast<size_t>(replica)] == kNobody)
      give(share, replica);
  }
  auto next = left.begin();
  for (size_t share = 0; share < order.size(); ++share) {
    if (order[share] != kNobody) continue;
    while ((*share_of)[static_cast<size_t>(*next)] != kNobody) ++next;
    give(static_cast<int32_t>(share), *next);
  }
  return order;
}

// Swaps two replicas wherever both together have more then.
void Improve(const HeldOfShares& shares, std::vector<int32_t>* share_of,
             std::vector<int32_t>* order) {
  constexpr int kPassesMax = 4;
  bool changed = true;
  for (int pass = 0; changed && pass < kPassesMax; ++pass) {
    changed = false;
    for (size_t i = 0; i < shares.size(); ++i) {
      for (const Held& held : shares[i]) {
        const int32_t here = (*order)[i];
        if (held.replica == here) continue;
        int32_t& its_share = (*share_of)[static_cast<size_t>(held.replica)];
        const auto other = static_cast<size_t>(its_share);
        if (held.amount + AmountOf(shares[other], here) <=
            AmountOf(shares[i], here) + AmountOf(shares[other], held.replica))
          continue;
        std::swap((*share_of)[static_cast<size_t>(here)], its_share);
        std::swap((*order)[i], (*order)[other]);
        changed = true;
      }
    }
  }
}

}  // namespace

std::vector<int32_t> OrderAfter(const Plan& before, int32_t module, const ReplicaTable& left) {
  if (left.present_replicas() == left.replicas()) return {};
  std::vector<int32_t> running = before.replicas(module).order(), ascending = running;
  std::sort(ascending.begin(), ascending.end());
  std::vector<int32_t> order;
  for (int32_t dp = 0; dp < left.replicas(); ++dp) {
    if (left.Present(dp)) order.push_back(dp);
  }
  if (ascending == order) {
    order = std::move(running);
  } else {
    ascending = order;
    const HeldOfShares shares = WhoHas(before, module, left);
    std::vector<int32_t> share_of(static_cast<size_t>(left.replicas()), kNobody);
    order = Deal(shares, ascending, &share_of);
    Improve(shares, &share_of, &order);
  }
  return order == ascending ? std::vector<int32_t>() : order;
}

}  // namespace phalanx::plan

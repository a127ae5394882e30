#include "core/plan/replica_order.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

constexpr int32_t kNobody = -1;

// How much of a new share the ranks of a replica have that would be its primary homes.
struct Held {
  int32_t replica = 0;
  int64_t amount = 0;
};
// Of each new share, one after the other.
class HeldOfShares {
 public:
  explicit HeldOfShares(size_t shares) { starts_.reserve(shares + 1); }
  size_t size() const { return starts_.size(); }
  absl::Span<const Held> operator[](size_t share) const {
    const size_t end = share + 1 < starts_.size() ? starts_[share + 1] : all_.size();
    return absl::MakeConstSpan(all_).subspan(starts_[share], end - starts_[share]);
  }
  int64_t AmountOf(size_t share, int32_t replica) const {
    for (const Held& held : (*this)[share]) {
      if (held.replica == replica) return held.amount;
    }
    return 0;
  }

  void Begin() { starts_.push_back(all_.size()); }
  // To the share begun last.
  void Add(int32_t replica, int64_t amount) {
    for (size_t i = starts_.back(); i < all_.size(); ++i) {
      if (all_[i].replica == replica) return void(all_[i].amount += amount);
    }
    all_.push_back({replica, amount});
  }

 private:
  std::vector<Held> all_;
  std::vector<size_t> starts_;  // of each share in `all_`
};

// How many of a replica's ranks have nothing.
struct Fresh {
  int64_t ranks = 0, all = 0;
  int64_t Left(int64_t amount) const { return all == 0 ? amount : amount - amount * ranks / all; }
};
std::vector<Fresh> FreshOf(const ReplicaTable& left, const std::set<Rank>& fresh) {
  std::vector<Fresh> replicas(static_cast<size_t>(left.replicas()));
  for (Rank rank : fresh) {
    const std::optional<ReplicaTable::Position> position = left.PositionOf(rank);
    if (!position.has_value()) continue;
    Fresh& replica = replicas[static_cast<size_t>(position->dp)];
    if (replica.all == 0) {
      for (int32_t pp = 0; pp < left.stages(); ++pp)
        replica.all += int64_t{left.Width(position->dp, pp)} * left.cp();
    }
    ++replica.ranks;
  }
  return replicas;
}

// Of each share that there will be. A bucket is as long as there are old shares times new ones.
HeldOfShares WhoHas(const Plan& before, int32_t module, const ReplicaTable& left,
                    const std::set<Rank>& fresh) {
  const std::vector<Fresh> fresh_of = FreshOf(left, fresh);
  const ReplicaTable& table = before.replicas(module);
  const int64_t cps = table.cp();
  RankList group;
  std::vector<int32_t> replica_of;  // `kNobody`: gone
  for (const int32_t dp : table.order()) {
    for (int32_t cp = 0; cp < cps; ++cp) group.push_back(table.At(dp, 0, cp, 0));
    replica_of.push_back(left.Present(dp) ? dp : kNobody);
  }
  const HomePositions homes = HomePositionsOf(before, module, group);
  const auto old_count = static_cast<int64_t>(group.size());
  const int64_t new_count = left.present_replicas() * cps;
  HeldOfShares shares(static_cast<size_t>(left.present_replicas()));
  for (int64_t share = 0; share < new_count; ++share) {
    const int64_t first = share * old_count, end = first + old_count;
    if (share % cps == 0) shares.Begin();
    for (int64_t old = first / new_count; old * new_count < end; ++old) {
      const int64_t amount =
          std::min(end, (old + 1) * new_count) - std::max(first, old * new_count);
      for (const int32_t home : homes.Of(static_cast<size_t>(old))) {
        const int32_t replica = replica_of[static_cast<size_t>(home / cps)];
        if (replica == kNobody || home % cps != share % cps) continue;
        const int64_t has = fresh_of[static_cast<size_t>(replica)].Left(amount);
        if (has > 0) shares.Add(replica, has);
      }
    }
  }
  return shares;
}

// A replica may have the share: the largest amounts first; of equal ones what is nearest to
// ascending order.
struct Choice {
  uint64_t key = 0;  // less: sooner
  int32_t share = 0, replica = 0;
  auto operator<=>(const Choice&) const = default;
};

std::vector<Choice> ChoicesOf(const HeldOfShares& shares, const std::vector<int32_t>& left,
                              size_t replicas) {
  std::vector<int32_t> ascending(replicas, kNobody);
  for (size_t i = 0; i < left.size(); ++i)
    ascending[static_cast<size_t>(left[i])] = static_cast<int32_t>(i);
  // A way is below kWorldMax, and an amount at most its square: both fit a word.
  constexpr int kWayBits = 20;
  static_assert(kWorldMax <= 1 << kWayBits);
  constexpr int64_t kAmountEnd = int64_t{1} << (63 - kWayBits);
  static_assert(int64_t{kWorldMax} * kWorldMax <= kAmountEnd);
  std::vector<Choice> choices;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto share = static_cast<int32_t>(i);
    for (const Held& held : shares[i]) {
      const int32_t way = std::abs(ascending[static_cast<size_t>(held.replica)] - share);
      const auto key = static_cast<uint64_t>(kAmountEnd - held.amount) << kWayBits;
      choices.push_back({key + static_cast<uint64_t>(way), share, held.replica});
    }
  }
  std::sort(choices.begin(), choices.end());
  return choices;
}

// Who has nothing that is still free takes the shares that are left over.
std::vector<int32_t> Deal(const HeldOfShares& shares, const std::vector<int32_t>& left,
                          std::vector<int32_t>* share_of) {
  std::vector<int32_t> order(left.size(), kNobody);
  const auto give = [&](int32_t share, int32_t replica) {
    order[static_cast<size_t>(share)] = replica;
    (*share_of)[static_cast<size_t>(replica)] = share;
  };
  for (const Choice& choice : ChoicesOf(shares, left, share_of->size())) {
    if (order[static_cast<size_t>(choice.share)] == kNobody &&
        (*share_of)[static_cast<size_t>(choice.replica)] == kNobody)
      give(choice.share, choice.replica);
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
        if (held.amount + shares.AmountOf(other, here) <=
            shares.AmountOf(i, here) + shares.AmountOf(other, held.replica))
          continue;
        std::swap((*share_of)[static_cast<size_t>(here)], its_share);
        std::swap((*order)[i], (*order)[other]);
        changed = true;
      }
    }
  }
}

}  // namespace

std::vector<int32_t> OrderAfter(const Plan& before, int32_t module, const ReplicaTable& left,
                                const std::set<Rank>& fresh) {
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
    const HeldOfShares shares = WhoHas(before, module, left, fresh);
    std::vector<int32_t> share_of(static_cast<size_t>(left.replicas()), kNobody);
    order = Deal(shares, ascending, &share_of);
    Improve(shares, &share_of, &order);
  }
  return order == ascending ? std::vector<int32_t>() : order;
}

}  // namespace phalanx::plan

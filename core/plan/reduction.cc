#include "core/plan/reduction.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/plan/ruler.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

// The ranks of a stage that sum: of each replica its width, and where its tensor ranks stand in the
// data group.
class Team {
 public:
  Team(const Plan& plan, const Place& place) {
    const ReplicaTable& table = plan.replicas(place.module);
    const bool equal = table.EqualWidths(place.pp);
    int32_t position = 0;
    for (const int32_t dp : table.order()) {
      for (int32_t cp = 0; cp < table.cp(); ++cp) {
        if (dp == place.dp && cp == place.cp) self_ = replicas();
        const int32_t width = table.Width(dp, place.pp);
        replicas_.push_back({width, equal ? position - place.tp : position});
        position += equal ? 1 : width;
      }
    }
  }

  int32_t replicas() const { return static_cast<int32_t>(replicas_.size()); }
  int32_t self() const { return self_; }  // the replica of the place
  int32_t WidthOf(int32_t replica) const { return replicas_[static_cast<size_t>(replica)].width; }
  // Where the replicas have one width the group has the ranks of one tensor coordinate alone.
  int32_t PositionOf(int32_t replica, int32_t tp) const {
    return replicas_[static_cast<size_t>(replica)].first + tp;
  }

 private:
  struct Replica {
    int32_t width = 0, first = 0;
  };
  std::vector<Replica> replicas_;
  int32_t self_ = 0;
};

using MirrorRuns = std::map<int32_t, std::vector<UnitRange>>;  // by position

int32_t PositionIn(const RankList& group, Rank rank) {
  return static_cast<int32_t>(std::find(group.begin(), group.end(), rank) - group.begin());
}

void SortAndMerge(std::vector<UnitRange>* runs) {
  std::sort(runs->begin(), runs->end(),
            [](const UnitRange& a, const UnitRange& b) { return a.first < b.first; });
  size_t kept = 0;
  for (const UnitRange& run : *runs) {
    if (kept > 0 && (*runs)[kept - 1].end() == run.first) {
      (*runs)[kept - 1].count += run.count;
    } else {
      (*runs)[kept++] = run;
    }
  }
  runs->resize(kept);
}

int64_t ElementsOf(const std::vector<UnitRange>& runs) {
  int64_t elements = 0;
  for (const UnitRange& run : runs) elements += run.count;
  return elements;
}

std::vector<MirrorPeer> PeersOf(MirrorRuns runs) {
  std::vector<MirrorPeer> peers;
  for (auto& [peer, of_peer] : runs) {
    SortAndMerge(&of_peer);
    peers.push_back({peer, std::move(of_peer)});
  }
  return peers;
}

// A run of one share that this rank is the home of.
struct OwnRun {
  UnitRange elements;
  std::vector<int32_t> leaders;  // of each replica, positions in the group
};

// One bucket's exchanges, as one rank has them. Ranks of every width store matrices in one order
// and units in them ascending, so ascending runs are the same elements at both ends.
class BucketBuilder {
 public:
  BucketBuilder(const Plan& plan, const Place& place, const Team& team, const RankList& group,
                const BucketRulers& rulers)
      : plan_(plan), place_(place), team_(team), group_(group), rulers_(rulers) {}

  void Add(const RulerShare& share) {
    const FamilyRuler* ruler = rulers_.Find(share.family);
    const int64_t unit = share.elements.first / ruler->unit_elements;
    std::vector<int32_t> leaders;  // of each replica
    for (int32_t replica = 0; replica < team_.replicas(); ++replica) {
      const int32_t tp = LeaderOf(plan_, place_.module, team_.WidthOf(replica), share.family, unit);
      if (replica == team_.self() && tp != place_.tp) return;
      leaders.push_back(team_.PositionOf(replica, tp));
    }
    std::vector<UnitRange> runs;
    rulers_.AppendRuns(share.family, share.elements, &runs);
    SortAndMerge(&runs);
    AddMirrors(share.replica, leaders, runs);
    if (share.replica != team_.self()) {
      Append(runs, &peers_[leaders[static_cast<size_t>(share.replica)]].give);
      return;
    }
    for (const UnitRange& run : runs) own_.push_back({run, leaders});
  }

  void Finish(ReducedBucket* bucket) && {
    bucket->even = false;
    std::sort(own_.begin(), own_.end(),
              [](const OwnRun& a, const OwnRun& b) { return a.elements.first < b.elements.first; });
    const int32_t self = team_.PositionOf(team_.self(), place_.tp);
    for (const OwnRun& own : own_) {
      bucket->own.push_back(own.elements);
      for (const int32_t leader : own.leaders) {
        if (leader != self) peers_[leader].take.push_back(own.elements);
      }
    }
    SortAndMerge(&bucket->own);
    bucket->to_mirrors = PeersOf(std::move(to_mirrors_));
    bucket->from_primaries = PeersOf(std::move(from_primaries_));
    int64_t taken = 0;
    std::map<int32_t, int64_t> next;  // source, by peer
    for (auto& [position, peer] : peers_) {
      peer.peer = position;
      SortAndMerge(&peer.give);
      SortAndMerge(&peer.take);
      peer.given = ElementsOf(peer.give);
      peer.taken = ElementsOf(peer.take);
      next[position] = taken;
      taken += peer.taken;
      bucket->peers.push_back(std::move(peer));
    }
    for (const OwnRun& own : own_) {
      SummedRun sum{.elements = own.elements};
      for (const int32_t leader : own.leaders) {
        sum.sources.push_back(leader == self ? -1 : next[leader]);
        if (leader != self) next[leader] += own.elements.count;
      }
      if (bucket->sums.empty() || !Continues(bucket->sums.back(), sum)) {
        bucket->sums.push_back(std::move(sum));
      } else {
        bucket->sums.back().elements.count += sum.elements.count;
      }
    }
  }

 private:
  static void Append(const std::vector<UnitRange>& runs, std::vector<UnitRange>* all) {
    all->insert(all->end(), runs.begin(), runs.end());
  }

  // Of a share that this rank leads.
  void AddMirrors(int32_t primary, const std::vector<int32_t>& leaders,
                  const std::vector<UnitRange>& runs) {
    std::vector<RankList>& homes = homes_[leaders];
    if (homes.empty()) {
      RankList ranks;
      for (const int32_t leader : leaders) ranks.push_back(group_[static_cast<size_t>(leader)]);
      homes = HomesOf(plan_, place_.module, ranks);
    }
    const auto position = [&](int32_t replica) { return leaders[static_cast<size_t>(replica)]; };
    const RankList& of_share = homes[static_cast<size_t>(primary)];
    for (int32_t replica = 0; replica < team_.replicas(); ++replica) {
      const Rank rank = group_[static_cast<size_t>(position(replica))];
      if (replica == primary || std::find(of_share.begin(), of_share.end(), rank) == of_share.end())
        continue;
      if (primary == team_.self()) Append(runs, &to_mirrors_[position(replica)]);
      if (replica == team_.self()) Append(runs, &from_primaries_[position(primary)]);
    }
  }

  static bool Continues(const SummedRun& before, const SummedRun& sum) {
    if (before.elements.end() != sum.elements.first) return false;
    for (size_t i = 0; i < sum.sources.size(); ++i) {
      const int64_t source = before.sources[i];
      if (sum.sources[i] != (source < 0 ? -1 : source + before.elements.count)) return false;
    }
    return true;
  }

  const Plan& plan_;
  const Place& place_;
  const Team& team_;
  const RankList& group_;
  const BucketRulers& rulers_;
  std::vector<OwnRun> own_;
  std::map<int32_t, SharePeer> peers_;  // by position
  MirrorRuns to_mirrors_, from_primaries_;
  std::map<std::vector<int32_t>, std::vector<RankList>> homes_;  // by the leaders of replicas
};

// Everything but what is done with the buckets.
Reduction WithoutMeans(const Plan& plan, const Place& place, int32_t chunk,
                       const StageParameters& parameters) {
  Reduction reduction{.part = {place.module, place.pp, chunk},
                      .group = plan.DataGroupOf(place),
                      .replicas = parameters.replicas};
  reduction.self = PositionIn(reduction.group, plan.RankOf(place));
  for (const Bucket& bucket : parameters.buckets) {
    if (bucket.offset >= parameters.trained_extent) break;
    reduction.buckets.push_back({.elements = {bucket.offset, bucket.elements}});
  }
  if (reduction.buckets.empty()) return reduction;
  for (Copy& copy : CopiesInSlot(plan, place, chunk)) {
    if (copy.lead.tp != place.tp && copy.follower.tp != place.tp) continue;
    reduction.copies.push_back(std::move(copy));
  }
  return reduction;
}

}  // namespace

Reduction ReductionOf(const Plan& plan, const Place& place, int32_t chunk,
                      const StageParameters& parameters) {
  if (!plan.replicas(place.module).EqualWidths(place.pp))
    return ReductionByMessages(plan, place, chunk, parameters);
  Reduction reduction = WithoutMeans(plan, place, chunk, parameters);
  reduction.for_all = SumsAreForAll(plan, place.module, place.pp);
  const Rank self = plan.RankOf(place);
  const std::vector<RankList> homes = HomesOf(plan, place.module, reduction.group);
  for (ReducedBucket& bucket : reduction.buckets) {
    MirrorRuns to, from;
    for (int32_t primary = 0; primary < reduction.replicas; ++primary) {
      const UnitRange share = EvenShare(bucket.elements, reduction.replicas, primary);
      const RankList& of_share = homes[static_cast<size_t>(primary)];
      if (primary == reduction.self) bucket.own = {share};
      for (size_t i = 1; i < of_share.size(); ++i) {
        if (primary == reduction.self) to[PositionIn(reduction.group, of_share[i])] = {share};
        if (of_share[i] == self) from[primary] = {share};
      }
    }
    bucket.to_mirrors = PeersOf(std::move(to));
    bucket.from_primaries = PeersOf(std::move(from));
  }
  return reduction;
}

Reduction ReductionByMessages(const Plan& plan, const Place& place, int32_t chunk,
                              const StageParameters& parameters) {
  Reduction reduction = WithoutMeans(plan, place, chunk, parameters);
  if (reduction.buckets.empty()) return reduction;
  const Team team(plan, place);
  const std::vector<std::vector<RulerShare>> shares = CutShares(plan, reduction.part);
  const std::vector<BucketRulers> rulers = RulersOf(plan, place, parameters);
  for (size_t b = 0; b < reduction.buckets.size(); ++b) {
    BucketBuilder builder(plan, place, team, reduction.group, rulers[b]);
    for (const RulerShare& share : shares[b]) builder.Add(share);
    std::move(builder).Finish(&reduction.buckets[b]);
  }
  return reduction;
}

}  // namespace phalanx::plan

#include "core/plan/message_peers.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/plan/copies.h"
#include "core/plan/derivation.h"
#include "core/plan/parameters.h"
#include "core/plan/reduction.h"
#include "core/plan/samples.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

using Use = CommunicatorSpec::Use;

// To connect two ranks takes some 10 ms for each of the communicator's channels.
constexpr std::ptrdiff_t kStatePeersEachSide = 8;

// Those that differ in what lanes work on, of which there are few.
std::vector<MicrobatchSamples> Microbatches(const Plan& plan) {
  std::map<std::vector<int64_t>, MicrobatchSamples> distinct;
  const auto add = [&distinct](MicrobatchSamples samples) {
    std::vector<int64_t> lanes = samples.lane_first;
    distinct.try_emplace(std::move(lanes), std::move(samples));
  };
  for (int64_t m = 0; m < plan.microbatches; ++m) add(SamplesOfMicrobatch(plan, m));
  // Evaluation ends with what is left of the data, and shows a few samples.
  const int64_t most = SamplesAtOnce(plan);
  for (int64_t count = 1; count <= most; ++count) add(DealMicrobatch(plan, count));
  std::vector<MicrobatchSamples> result;
  for (auto& [lanes, samples] : distinct) result.push_back(std::move(samples));
  return result;
}

std::set<Rank> PeersOfLinks(const Plan& plan, Rank rank) {
  const std::vector<Place> places = plan.PlacesOf(rank);
  const auto here = [&places](const auto& end) {
    return std::any_of(places.begin(), places.end(), [&end](const Place& place) {
      return place.module == end.module && place.pp == end.stage;
    });
  };
  const std::vector<MicrobatchSamples> microbatches = Microbatches(plan);
  std::set<Rank> peers;
  for (size_t link = 0; link < plan.links.size(); ++link) {
    if (!here(plan.links[link].from) && !here(plan.links[link].to)) continue;
    for (const MicrobatchSamples& samples : microbatches) {
      for (const LinkMessage& message : LinkMessages(plan, static_cast<int32_t>(link), samples)) {
        if (message.count == 0 || message.from == message.to) continue;
        if (message.from == rank) peers.insert(message.to);
        if (message.to == rank) peers.insert(message.from);
      }
    }
  }
  return peers;
}

void InsertOtherEnds(const Plan& plan, const std::vector<Copy>& copies, Rank rank,
                     std::set<Rank>& peers) {
  for (const Copy& copy : copies) {
    const Rank lead = plan.RankOf(copy.lead), follower = plan.RankOf(copy.follower);
    if (lead == follower) continue;
    if (lead == rank) peers.insert(follower);
    if (follower == rank) peers.insert(lead);
  }
}

// Those with whom a rank reduces by messages, or mirrors by them.
void InsertPeersOfShares(const Plan& plan, const Place& place, int32_t chunk,
                         std::set<Rank>& peers) {
  const Reduction reduction = ReductionOf(plan, place, chunk, ParametersOf(plan, place, chunk));
  if (reduction.for_all) return;
  for (const ReducedBucket& bucket : reduction.buckets) {
    const auto insert = [&](const auto& list) {
      for (const auto& peer : list) peers.insert(reduction.group[static_cast<size_t>(peer.peer)]);
    };
    insert(bucket.peers);
    insert(bucket.to_mirrors);
    insert(bucket.from_primaries);
  }
}

// Who may hold what a rank lacks on its way into the plan (relayout.h), or lack what it holds:
// those that work on the same stage, next to it in their order, since shares go by that.
void InsertPeersOfState(const Plan& plan, const Place& place, Rank rank, std::set<Rank>& peers) {
  const ReplicaTable& table = plan.replicas(place.module);
  std::set<Rank> all;
  for (const int32_t dp : table.order()) {
    for (int32_t cp = 0; cp < table.cp(); ++cp) {
      for (int32_t tp = 0; tp < table.Width(dp, place.pp); ++tp)
        all.insert(table.At(dp, place.pp, cp, tp));
    }
  }
  const RankList list(all.begin(), all.end());
  const auto at = std::lower_bound(list.begin(), list.end(), rank);
  const auto before = std::min<std::ptrdiff_t>(at - list.begin(), kStatePeersEachSide);
  const auto behind = std::min<std::ptrdiff_t>(list.end() - at, kStatePeersEachSide + 1);
  peers.insert(at - before, at + behind);
  peers.erase(rank);
}

// Of those, the ones in which some lane of one module has samples in common with a lane of another,
// or of its own, that it had none in common with before: the others bring about no other messages.
std::vector<const MicrobatchSamples*> ThoseOfNewLanes(
    const Plan& plan, int32_t from, int32_t to,
    const std::vector<MicrobatchSamples>& microbatches) {
  const auto lanes_of = [&plan](int32_t module) {
    return static_cast<size_t>(plan.replicas(module).replicas());
  };
  const size_t from_lanes = lanes_of(from), to_lanes = lanes_of(to);
  const auto starts_of = [&](int32_t module, const MicrobatchSamples& samples) {
    return module == plan.spec.language ? samples.lane_first
                                        : LaneStarts(plan.modules[static_cast<size_t>(module)],
                                                     static_cast<int64_t>(samples.samples.size()));
  };
  std::vector<bool> met(from_lanes * to_lanes);
  std::vector<const MicrobatchSamples*> some;
  // Those of more samples, in which more lanes meet, come last.
  for (auto each = microbatches.rbegin(); each != microbatches.rend(); ++each) {
    const MicrobatchSamples& samples = *each;
    const std::vector<int64_t> one = starts_of(from, samples), other = starts_of(to, samples);
    bool any = false;
    for (size_t a = 0, b = 0; a < from_lanes && b < to_lanes;) {
      if (std::max(one[a], other[b]) < std::min(one[a + 1], other[b + 1])) {
        any |= !met[a * to_lanes + b];
        met[a * to_lanes + b] = true;
      }
      (one[a + 1] <= other[b + 1] ? a : b) += 1;
    }
    if (any) some.push_back(&samples);
  }
  return some;
}

std::vector<PeerCounts> CountPeersOfLinks(const Plan& plan) {
  const auto world = static_cast<size_t>(plan.world);
  std::vector<bool> met(world * world);
  std::vector<PeerCounts> counts(world);
  const auto meet = [&](Rank one, Rank other) {
    const auto from = static_cast<size_t>(one.value), to = static_cast<size_t>(other.value);
    if (met[from * world + to]) return;
    met[from * world + to] = met[to * world + from] = true;
    ++counts[from].links;
    ++counts[to].links;
  };
  const std::vector<MicrobatchSamples> microbatches = Microbatches(plan);
  std::map<std::pair<int32_t, int32_t>, std::vector<const MicrobatchSamples*>> of_modules;
  for (size_t link = 0; link < plan.links.size(); ++link) {
    const int32_t from = plan.links[link].from.module, to = plan.links[link].to.module;
    const auto [some, is_new] = of_modules.try_emplace({from, to});
    if (is_new) some->second = ThoseOfNewLanes(plan, from, to, microbatches);
    for (const MicrobatchSamples* samples : some->second) {
      for (const LinkMessage& message : LinkMessages(plan, static_cast<int32_t>(link), *samples)) {
        if (message.count > 0 && message.from != message.to) meet(message.from, message.to);
      }
    }
  }
  return counts;
}

// Whether state may move to the plan's ranks before they train.
bool MovesState(const Plan& plan) {
  return plan.layout.epoch.value > 1 && plan.layout.derivation >= kDerivationOfConnectedState;
}

// Those of places but for links. Of the replicas of one width all is alike but who mirrors whom.
class CountsOfPlaces {
 public:
  CountsOfPlaces(const Plan& plan, PartSizes& sizes) : plan_(plan), sizes_(sizes) {}

  struct OfPlace {
    PeerCounts counts;
    int32_t data_group = 0;  // modules that share one have the same
  };
  OfPlace Of(const Place& place) {
    if (!HasEqualWidths(place.module))
      return {OfUnequal(place), NumberOf(plan_.DataGroupOf(place))};
    const auto [slot, is_new] = slots_.try_emplace({place.module, place.pp, place.cp});
    if (is_new) slot->second = SlotOf(place);
    TensorPlace& at = slot->second[static_cast<size_t>(place.tp)];
    OfPlace of_place = at.alike;
    if (!at.mirrors.empty()) of_place.counts.data = at.mirrors[plan_.RankOf(place)];
    return of_place;
  }

 private:
  struct TensorPlace {
    OfPlace alike;                    // but for mirrors
    std::map<Rank, int32_t> mirrors;  // of each replica's: whose sums it mirrors, and who its own
  };

  bool HasEqualWidths(int32_t module) const {
    const ModulePlan& of = plan_.modules[static_cast<size_t>(module)];
    for (int32_t stage = 0; stage < of.pp(); ++stage) {
      if (!of.replicas.EqualWidths(stage)) return false;
    }
    return true;
  }

  int32_t NumberOf(const RankList& group) {
    return groups_.try_emplace(group, static_cast<int32_t>(groups_.size())).first->second;
  }

  static int32_t CountOf(const std::set<Rank>& peers) { return static_cast<int32_t>(peers.size()); }

  PeerCounts OfUnequal(const Place& place) const {
    const Rank rank = plan_.RankOf(place);
    std::set<Rank> tied, in_slot, of_shares;
    InsertOtherEnds(plan_, TiedCopies(plan_, place), rank, tied);
    const int32_t chunks = plan_.modules[static_cast<size_t>(place.module)].chunks();
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      InsertOtherEnds(plan_, CopiesInSlot(plan_, place, chunk), rank, in_slot);
      InsertPeersOfShares(plan_, place, chunk, of_shares);
    }
    return {.control = CountOf(tied), .tensor = CountOf(in_slot), .data = CountOf(of_shares)};
  }

  // Of its tensor group, by tensor coordinate.
  std::vector<TensorPlace> SlotOf(Place place) {
    const std::vector<Copy> tied = TiedCopies(plan_, place);
    const int32_t chunks = plan_.modules[static_cast<size_t>(place.module)].chunks();
    const auto width = static_cast<size_t>(place.width);
    std::vector<std::set<int32_t>> in_slot(width);
    bool trains = false;
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      const auto& of_chunk = sizes_.CopyPeersOf(plan_, place, chunk);
      for (size_t tp = 0; tp < width; ++tp)
        in_slot[tp].insert(of_chunk[tp].begin(), of_chunk[tp].end());
      trains |= sizes_.Of(plan_, place, chunk).trained_extent > 0;
    }
    const bool mirrors_by_messages =
        trains && IsMirrored(plan_, place.module) && !SumsAreForAll(plan_, place.module, place.pp);
    std::vector<TensorPlace> slot(width);
    for (size_t tp = 0; tp < width; ++tp) {
      place.tp = static_cast<int32_t>(tp);
      std::set<Rank> control;
      InsertOtherEnds(plan_, tied, plan_.RankOf(place), control);
      const RankList group = plan_.DataGroupOf(place);
      slot[tp].alike = {
          {.control = CountOf(control), .tensor = static_cast<int32_t>(in_slot[tp].size())},
          NumberOf(group)};
      if (mirrors_by_messages) slot[tp].mirrors = MirrorsIn(place.module, group);
    }
    return slot;
  }

  std::map<Rank, int32_t> MirrorsIn(int32_t module, const RankList& group) const {
    const HomePositions homes = HomePositionsOf(plan_, module, group);
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (size_t share = 0; share < group.size(); ++share) {
      const auto of_share = homes.Of(share);
      for (size_t i = 1; i < of_share.size(); ++i) {
        pairs.emplace_back(of_share[0], of_share[i]);
        pairs.emplace_back(of_share[i], of_share[0]);
      }
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    std::map<Rank, int32_t> mirrors;
    for (const auto& [position, peer] : pairs) ++mirrors[group[static_cast<size_t>(position)]];
    return mirrors;
  }

  const Plan& plan_;
  PartSizes& sizes_;
  std::map<RankList, int32_t> groups_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::vector<TensorPlace>>
      slots_;  // module, pp, cp
};

}  // namespace

std::vector<std::vector<int32_t>> MessagePeers(const Plan& plan, Rank rank,
                                               absl::Span<const CommunicatorSpec> specs) {
  const std::set<Rank> of_links = PeersOfLinks(plan, rank);
  std::set<Rank> of_ranks;  // on the control communicator
  const bool moves = MovesState(plan);
  std::map<std::pair<Use, RankList>, std::set<Rank>> of_groups;
  for (const Place& place : plan.PlacesOf(rank)) {
    InsertOtherEnds(plan, TiedCopies(plan, place), rank, of_ranks);
    if (moves) InsertPeersOfState(plan, place, rank, of_ranks);
    std::set<Rank>& in_group =
        of_groups[{Use::kTensor, plan.TensorGroup(place.module, place.dp, place.pp, place.cp)}];
    const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
    for (int32_t chunk = 0; chunk < chunks; ++chunk)
      InsertOtherEnds(plan, CopiesInSlot(plan, place, chunk), rank, in_group);
    std::set<Rank>& of_shares = of_groups[{Use::kData, plan.DataGroupOf(place)}];
    for (int32_t chunk = 0; chunk < chunks; ++chunk)
      InsertPeersOfShares(plan, place, chunk, of_shares);
  }
  std::vector<std::vector<int32_t>> result(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const RankList& ranks = specs[i].ranks;
    const std::set<Rank>* peers = nullptr;
    if (specs[i].use == Use::kControl) peers = &of_ranks;
    if (specs[i].use == Use::kForward || specs[i].use == Use::kBackward) peers = &of_links;
    if (const auto found = of_groups.find({specs[i].use, ranks}); found != of_groups.end())
      peers = &found->second;
    if (peers == nullptr) continue;
    for (size_t p = 0; p < ranks.size(); ++p) {
      if (peers->contains(ranks[p])) result[i].push_back(static_cast<int32_t>(p));
    }
  }
  return result;
}

std::vector<PeerCounts> CountPeers(const Plan& plan, PartSizes& sizes) {
  std::vector<PeerCounts> counts = CountPeersOfLinks(plan);
  CountsOfPlaces of_places(plan, sizes);
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    PeerCounts& count = counts[static_cast<size_t>(rank)];
    // Modules that share a group have alike peers in it.
    std::map<RankList, int32_t> tensor;
    std::map<int32_t, int32_t> data;
    std::set<Rank> of_state;
    const auto raise = [](int32_t& most, int32_t peers) { most = std::max(most, peers); };
    for (const Place& place : plan.PlacesOf(Rank{rank})) {
      const auto [of_place, data_group] = of_places.Of(place);
      count.control += of_place.control;
      if (MovesState(plan)) InsertPeersOfState(plan, place, Rank{rank}, of_state);
      if (of_place.tensor > 0)
        raise(tensor[plan.TensorGroup(place.module, place.dp, place.pp, place.cp)],
              of_place.tensor);
      raise(data[data_group], of_place.data);
    }
    count.control += static_cast<int32_t>(of_state.size());
    for (const auto& [group, peers] : tensor) count.tensor += peers;
    for (const auto& [group, peers] : data) count.data += peers;
  }
  return counts;
}

}  // namespace phalanx::plan

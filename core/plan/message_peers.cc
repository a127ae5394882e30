#include "core/plan/message_peers.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/plan/copies.h"
#include "core/plan/derivation.h"
#include "core/plan/parameters.h"
#include "core/plan/reduction.h"
#include "core/plan/samples.h"

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

}  // namespace

std::vector<std::vector<int32_t>> MessagePeers(const Plan& plan, Rank rank,
                                               absl::Span<const CommunicatorSpec> specs) {
  const std::set<Rank> of_links = PeersOfLinks(plan, rank);
  std::set<Rank> of_ranks;  // on the control communicator
  const bool moves =
      plan.layout.epoch.value > 1 && plan.layout.derivation >= kDerivationOfConnectedState;
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

}  // namespace phalanx::plan

#include "core/schedule/wiring.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/plan/samples.h"
#include "core/plan/units.h"

namespace phalanx::schedule {
namespace {

// Position of each member at one end of a link; of members elsewhere, meaningless.
class Positions {
 public:
  explicit Positions(int32_t members) : position_(static_cast<size_t>(members)) {}

  void Fill(const std::vector<int32_t>& members) {
    for (size_t i = 0; i < members.size(); ++i) {
      position_[static_cast<size_t>(members[i])] = static_cast<int32_t>(i);
    }
  }
  int32_t Of(int32_t member) const { return position_[static_cast<size_t>(member)]; }

 private:
  std::vector<int32_t> position_;
};

// Peer lists of one end, from positions (here, there) at the two ends.
PeerLists ListPeers(const std::vector<std::pair<int32_t, int32_t>>& pairs, size_t members) {
  PeerLists lists;
  lists.offsets.assign(members + 1, 0);
  for (const auto& [here, there] : pairs) ++lists.offsets[static_cast<size_t>(here) + 1];
  for (size_t i = 1; i < lists.offsets.size(); ++i) lists.offsets[i] += lists.offsets[i - 1];
  lists.peers.resize(pairs.size());
  std::vector<int32_t> filled(lists.offsets.begin(), lists.offsets.end() - 1);
  for (const auto& [here, there] : pairs) {
    lists.peers[static_cast<size_t>(filled[static_cast<size_t>(here)]++)] = there;
  }
  return lists;
}

// `pairs`: (from, to) members of the messages of a link.
void AddPattern(std::vector<std::pair<int32_t, int32_t>> pairs, LinkEnd& from, LinkEnd& to,
                Positions& from_positions, Positions& to_positions) {
  from_positions.Fill(from.members);
  to_positions.Fill(to.members);
  for (auto& [a, b] : pairs) {
    a = from_positions.Of(a);
    b = to_positions.Of(b);
  }
  from.of_pattern.push_back(ListPeers(pairs, from.members.size()));
  for (auto& [a, b] : pairs) std::swap(a, b);
  to.of_pattern.push_back(ListPeers(pairs, to.members.size()));
}

// Members at the ends of each link, from parts_of.
void FillEnds(const Pipeline& pipeline, Wiring& wiring) {
  std::vector<std::vector<int32_t>> holders(pipeline.parts.size());
  for (int32_t member = 0; member < wiring.members; ++member) {
    for (int32_t part : wiring.parts_of[static_cast<size_t>(member)]) {
      holders[static_cast<size_t>(part)].push_back(member);
    }
  }
  for (const LinkParts& ends : pipeline.links) {
    wiring.from.push_back({.members = holders[static_cast<size_t>(ends.from)]});
    wiring.to.push_back({.members = holders[static_cast<size_t>(ends.to)]});
  }
}

void FillGroups(const plan::Plan& plan, const Pipeline& pipeline, Wiring& wiring) {
  // (part, data coordinate)
  std::map<std::tuple<int32_t, int32_t>, int32_t> group_of;
  wiring.groups_of.resize(static_cast<size_t>(wiring.members));
  for (int32_t rank = 0; rank < wiring.members; ++rank) {
    for (int32_t p : wiring.parts_of[static_cast<size_t>(rank)]) {
      const Part& part = pipeline.parts[static_cast<size_t>(p)];
      const int32_t tp = plan.DataCoordinate(*plan.PlaceOf(Rank{rank}, part.module));
      const auto [group, is_new] =
          group_of.try_emplace({p, tp}, static_cast<int32_t>(wiring.group_sizes.size()));
      if (is_new) wiring.group_sizes.push_back(0);
      ++wiring.group_sizes[static_cast<size_t>(group->second)];
      wiring.groups_of[static_cast<size_t>(rank)].push_back(group->second);
    }
  }
}

void FillTensorGroups(const plan::Plan& plan, const Pipeline& pipeline, Wiring& wiring) {
  std::map<std::tuple<int32_t, int32_t>, int32_t> crew_of;  // (part, first rank)
  wiring.crews_of.resize(static_cast<size_t>(wiring.members));
  for (int32_t rank = 0; rank < wiring.members; ++rank) {
    for (int32_t p : wiring.parts_of[static_cast<size_t>(rank)]) {
      std::vector<int32_t>& crews_of_rank = wiring.crews_of[static_cast<size_t>(rank)];
      plan::Place place = *plan.PlaceOf(Rank{rank}, pipeline.parts[static_cast<size_t>(p)].module);
      if (place.width == 1) {
        crews_of_rank.push_back(-1);
        continue;
      }
      place.tp = 0;
      const auto [crew, added] = crew_of.try_emplace({p, plan.RankOf(place).value},
                                                     static_cast<int32_t>(wiring.crews.size()));
      if (added) wiring.crews.emplace_back();
      wiring.crews[static_cast<size_t>(crew->second)].push_back(rank);
      crews_of_rank.push_back(crew->second);
    }
  }
}

// Ranks of another stage of the same replica that hold vocabulary rows which `place` holds too;
// where the vocabulary is not known, the one of the same tensor coordinate.
std::vector<Rank> HoldersAtOtherEnd(const plan::Plan& plan, const plan::Place& place,
                                    int32_t stage) {
  const job::Architecture& architecture = plan.module_spec(place.module).architecture;
  const plan::UnitRange here =
      plan::TensorUnitsOf(architecture, place.width, place.tp).vocabulary_blocks;
  const int32_t width = plan.Width(place.module, place.dp, stage);
  std::vector<Rank> holders;
  for (int32_t tp = 0; tp < width; ++tp) {
    const plan::UnitRange there = plan::TensorUnitsOf(architecture, width, tp).vocabulary_blocks;
    const bool known = here.count > 0 || there.count > 0;
    const bool shares = here.first < there.end() && there.first < here.end();
    if (known ? !shares : tp != place.tp) continue;
    plan::Place other = place;
    other.pp = stage;
    other.tp = tp;
    holders.push_back(plan.RankOf(other));
  }
  return holders;
}

void FillTies(const plan::Plan& plan, const Pipeline& pipeline, Wiring& wiring) {
  for (int32_t rank = 0; rank < wiring.members; ++rank) {
    std::vector<Wiring::Tie>& ties = wiring.ties_of[static_cast<size_t>(rank)];
    for (int32_t p : wiring.parts_of[static_cast<size_t>(rank)]) {
      const Part& part = pipeline.parts[static_cast<size_t>(p)];
      if (part.tied < 0) continue;
      for (Rank other : HoldersAtOtherEnd(plan, *plan.PlaceOf(Rank{rank}, part.module),
                                          pipeline.parts[static_cast<size_t>(part.tied)].stage)) {
        if (other.value != rank) ties.push_back({part.module, other.value});
      }
    }
  }
}

void FillCrews(const Pipeline& pipeline, Wiring& wiring) {
  std::map<std::tuple<int32_t, int32_t>, int32_t> crew_of;  // (part, crew)
  for (const RankClass& ranks : pipeline.classes) {
    std::vector<int32_t>& crews_of_class = wiring.crews_of.emplace_back();
    for (size_t i = 0; i < ranks.parts.size(); ++i) {
      const std::vector<int32_t>& classes =
          pipeline.crews[static_cast<size_t>(ranks.crews[i])].classes;
      if (classes.size() == 1) {
        crews_of_class.push_back(-1);
        continue;
      }
      const auto [crew, added] = crew_of.try_emplace({ranks.parts[i], ranks.crews[i]},
                                                     static_cast<int32_t>(wiring.crews.size()));
      if (added) wiring.crews.push_back(classes);
      crews_of_class.push_back(crew->second);
    }
  }
}

}  // namespace

Wiring WireRanks(const plan::Plan& plan, const Pipeline& pipeline) {
  Wiring wiring;
  wiring.members = plan.world;
  wiring.microbatches = pipeline.microbatches;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    wiring.parts_of.push_back(PartsOf(pipeline, plan, Rank{rank}));
  }
  FillEnds(pipeline, wiring);
  FillGroups(plan, pipeline, wiring);
  FillTensorGroups(plan, pipeline, wiring);
  wiring.ties_of.resize(static_cast<size_t>(wiring.members));
  FillTies(plan, pipeline, wiring);
  Positions from_positions(wiring.members), to_positions(wiring.members);
  std::map<std::vector<int64_t>, int32_t> patterns;  // by where each lane's samples begin
  for (int32_t m = 0; m < wiring.microbatches; ++m) {
    const plan::MicrobatchSamples samples = plan::SamplesOfMicrobatch(plan, m);
    const auto [pattern, added] =
        patterns.try_emplace(samples.lane_first, static_cast<int32_t>(patterns.size()));
    wiring.pattern_of.push_back(pattern->second);
    if (!added) continue;
    for (size_t link = 0; link < pipeline.links.size(); ++link) {
      std::vector<std::pair<int32_t, int32_t>> pairs;
      for (const plan::LinkMessage& message :
           plan::LinkMessages(plan, static_cast<int32_t>(link), samples)) {
        pairs.emplace_back(message.from.value, message.to.value);
      }
      AddPattern(std::move(pairs), wiring.from[link], wiring.to[link], from_positions,
                 to_positions);
    }
  }
  return wiring;
}

Wiring WireClasses(const Pipeline& pipeline) {
  Wiring wiring;
  wiring.members = static_cast<int32_t>(pipeline.classes.size());
  wiring.microbatches = pipeline.microbatches;
  wiring.pattern_of.assign(static_cast<size_t>(pipeline.microbatches), 0);
  for (const RankClass& ranks : pipeline.classes) {
    wiring.parts_of.push_back(ranks.parts);
    wiring.groups_of.push_back(ranks.parts);  // a part is its own group
  }
  for (const Part& part : pipeline.parts) {
    wiring.group_sizes.push_back(static_cast<int32_t>(part.classes.size()));
  }
  FillCrews(pipeline, wiring);
  wiring.ties_of.resize(static_cast<size_t>(wiring.members));
  FillEnds(pipeline, wiring);
  Positions from_positions(wiring.members), to_positions(wiring.members);
  for (size_t link = 0; link < pipeline.links.size(); ++link) {
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (int32_t from : wiring.from[link].members) {
      for (int32_t to : wiring.to[link].members) pairs.emplace_back(from, to);
    }
    AddPattern(std::move(pairs), wiring.from[link], wiring.to[link], from_positions, to_positions);
  }
  return wiring;
}

}  // namespace phalanx::schedule

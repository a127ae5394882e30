#include "core/plan/shares.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "core/plan/parameters.h"

namespace phalanx::plan {
namespace {

// Quanta of one tensor rank of all replicas of a class together.
struct Load {
  int64_t poured = 0;
  int64_t dealt = 0;  // of these, to the replicas
};

// The replicas of one width: their ranks lead the same units, so they are given alike.
struct WidthClass {
  std::vector<int32_t> replicas;
  std::vector<Load> loads;  // of each tensor rank
};

// The widest first.
using WidthClasses = std::map<int32_t, WidthClass, std::greater<>>;

WidthClasses ClassesOf(const ReplicaTable& table, int32_t pp) {
  WidthClasses classes;
  int32_t replica = 0;
  for (const int32_t dp : table.order()) {
    const int32_t width = table.Width(dp, pp);
    WidthClass& same = classes[width];
    same.loads.resize(static_cast<size_t>(width));
    for (int32_t cp = 0; cp < table.cp(); ++cp) same.replicas.push_back(replica++);
  }
  return classes;
}

// One rank of each replica of a class that could be home of a segment.
struct Candidate {
  Load* load = nullptr;  // into WidthClass::loads
  int64_t replicas = 0;
  int64_t given = 0;  // quanta of the segment
};

// A run of units with the same leaders, in one bucket.
struct RulerSegment {
  UnitFamily family;
  UnitRange elements;
  std::vector<Candidate> candidates;  // of each class, the widest first
};

// Gives `quanta` to the candidates with the least load a replica, as water finds its level.
void Pour(int64_t quanta, std::vector<Candidate>& candidates) {
  std::vector<Candidate*> order;
  for (Candidate& candidate : candidates) order.push_back(&candidate);
  std::stable_sort(order.begin(), order.end(), [](const Candidate* a, const Candidate* b) {
    return a->load->poured * b->replicas < b->load->poured * a->replicas;
  });
  // The level is sum / replicas over the candidates below it.
  int64_t replicas = 0, sum = quanta;
  size_t end = 0;
  for (; end < order.size(); ++end) {
    const Candidate& next = *order[end];
    if (end > 0 && sum * next.replicas <= next.load->poured * replicas) break;
    sum += next.load->poured;
    replicas += next.replicas;
  }
  int64_t rest = quanta;
  for (size_t i = 0; i < end; ++i) {
    Candidate& candidate = *order[i];
    candidate.given = sum * candidate.replicas / replicas - candidate.load->poured;
    rest -= candidate.given;
  }
  for (size_t i = 0; rest > 0; ++i, --rest) ++order[i]->given;
  for (Candidate* candidate : order) candidate->load->poured += candidate->given;
}

// Whether other quanta than before went to anybody.
bool PourAgain(RulerSegment& segment) {
  const std::vector<Candidate> before = segment.candidates;
  for (Candidate& candidate : segment.candidates) {
    candidate.load->poured -= candidate.given;
    candidate.given = 0;
  }
  Pour((segment.elements.count + kShareQuantum - 1) / kShareQuantum, segment.candidates);
  return !std::equal(before.begin(), before.end(), segment.candidates.begin(),
                     [](const Candidate& a, const Candidate& b) { return a.given == b.given; });
}

// Whoever leads a unit in each class can be its home.
void AppendSegments(const Plan& plan, const PartId& part, const FamilyRuler& ruler,
                    WidthClasses& classes, std::vector<RulerSegment>* segments) {
  // Of each class the last units of its tensor ranks that lead some.
  std::vector<std::map<int64_t, int32_t>> leaders;
  std::set<int64_t> ends;
  for (const auto& [width, same] : classes) {
    std::map<int64_t, int32_t>& by_end = leaders.emplace_back();
    Place place{.module = part.module, .pp = part.stage, .width = width};
    for (; place.tp < width; ++place.tp) {
      const UnitRange led = LedUnits(plan, place, ruler.family);
      if (led.count > 0) by_end[led.end()] = place.tp;
    }
    for (const auto& [end, tp] : by_end) ends.insert(end);
  }
  int64_t first = 0;
  for (const int64_t end : ends) {
    RulerSegment segment{
        .family = ruler.family,
        .elements = {first * ruler.unit_elements, (end - first) * ruler.unit_elements}};
    auto by_end = leaders.begin();
    for (auto& [width, same] : classes) {
      const int32_t tp = (by_end++)->upper_bound(first)->second;
      segment.candidates.push_back({.load = &same.loads[static_cast<size_t>(tp)],
                                    .replicas = static_cast<int64_t>(same.replicas.size())});
    }
    segments->push_back(std::move(segment));
    first = end;
  }
}

// Shares of one segment: class after class, in a class replica after replica, whose sums differ by
// one quantum at most.
void AppendShares(const RulerSegment& segment, const WidthClasses& classes,
                  std::vector<RulerShare>* shares) {
  int64_t first = segment.elements.first;
  auto candidate = segment.candidates.begin();
  for (const auto& [width, same] : classes) {
    int64_t& dealt = candidate->load->dealt;
    for (int64_t i = 0; i < candidate->replicas; ++i) {
      const int64_t quanta = EvenSplit(dealt + candidate->given, candidate->replicas, i).count -
                             EvenSplit(dealt, candidate->replicas, i).count;
      const int64_t end = std::min(first + quanta * kShareQuantum, segment.elements.end());
      if (end > first) {
        shares->push_back(
            {segment.family, {first, end - first}, same.replicas[static_cast<size_t>(i)]});
      }
      first = end;
    }
    dealt += candidate->given;
    ++candidate;
  }
}

}  // namespace

std::vector<std::vector<RulerShare>> CutShares(const Plan& plan, const PartId& part) {
  const ReplicaTable& table = plan.replicas(part.module);
  const Place first{.module = part.module,
                    .dp = table.FirstPresent(),
                    .pp = part.stage,
                    .width = table.Width(table.FirstPresent(), part.stage)};
  const StageParameters parameters = ParametersOf(plan, first, part.chunk);
  WidthClasses classes = ClassesOf(table, part.stage);
  std::vector<std::vector<RulerShare>> buckets;
  for (const BucketRulers& bucket : RulersOf(plan, first, parameters)) {
    std::vector<RulerSegment> segments;
    for (const FamilyRuler& ruler : bucket.rulers)
      AppendSegments(plan, part, ruler, classes, &segments);
    // Each pouring lowers the sum of squared loads or leaves all as it is, so this comes to the
    // most even cut that leaders allow; remainders of a quantum may go round.
    constexpr int kSweepsMax = 64;
    bool changed = true;
    for (int sweep = 0; changed && sweep < kSweepsMax; ++sweep) {
      changed = false;
      for (RulerSegment& segment : segments) changed |= PourAgain(segment);
    }
    std::vector<RulerShare>& shares = buckets.emplace_back();
    for (const RulerSegment& segment : segments) AppendShares(segment, classes, &shares);
  }
  return buckets;
}

HomeLoads HomeLoadsOf(const Plan& plan, const PartId& part) {
  const ReplicaTable& table = plan.replicas(part.module);
  HomeLoads result;
  std::map<std::pair<int32_t, int32_t>, HomeLoad>& loads = result.of;
  std::vector<int32_t> widths;  // of each replica
  for (const auto& [width, same] : ClassesOf(table, part.stage)) {
    for (int32_t tp = 0; tp < width; ++tp) loads[{width, tp}];
    widths.resize(std::max(widths.size(), static_cast<size_t>(same.replicas.back()) + 1));
    for (const int32_t replica : same.replicas) widths[static_cast<size_t>(replica)] = width;
  }
  GroupsOfLeaders groups(plan, part);
  const Place first{.module = part.module,
                    .dp = table.order().front(),
                    .pp = part.stage,
                    .width = widths.front()};
  const std::vector<BucketRulers> rulers =
      RulersOf(plan, first, ParametersOf(plan, first, part.chunk));
  const std::vector<std::vector<RulerShare>> shares = CutShares(plan, part);
  using OfRank = std::map<std::pair<int32_t, int32_t>, int64_t>;  // by replica, or width; and tp
  OfRank own;
  for (size_t b = 0; b < shares.size(); ++b) {
    OfRank own_here, led;
    for (const RulerShare& share : shares[b]) {
      const int64_t unit = share.elements.first / rulers[b].Find(share.family)->unit_elements;
      const int32_t width = widths[static_cast<size_t>(share.replica)];
      own_here[{share.replica, LeaderOf(plan, part.module, width, share.family, unit)}] +=
          share.elements.count;
      if (!IsMirrored(plan, part.module)) continue;
      const RankList& homes =
          groups.HomesAt(share.family, unit)[static_cast<size_t>(share.replica)];
      for (size_t i = 1; i < homes.size(); ++i) result.mirrored[homes[i]] += share.elements.count;
    }
    for (auto& [rank, load] : loads) {
      const Place place{.module = part.module, .tp = rank.second, .width = rank.first};
      for (const FamilyRuler& ruler : rulers[b].rulers) {
        led[rank] += LedUnits(plan, place, ruler.family).count * ruler.unit_elements;
      }
    }
    for (size_t replica = 0; replica < widths.size(); ++replica) {
      for (int32_t tp = 0; tp < widths[replica]; ++tp) {
        const std::pair<int32_t, int32_t> rank{static_cast<int32_t>(replica), tp};
        const int64_t here = own_here[rank];
        HomeLoad& load = loads[{widths[replica], tp}];
        load.own = std::max(load.own, own[rank] += here);
        load.given = std::max(load.given, led[{widths[replica], tp}] - here);
        load.taken = std::max(load.taken, here * (static_cast<int64_t>(widths.size()) - 1));
      }
    }
  }
  return result;
}

GroupsOfLeaders::GroupsOfLeaders(const Plan& plan, const PartId& part) : plan_(plan), part_(part) {
  const ReplicaTable& table = plan.replicas(part.module);
  for (const int32_t dp : table.order()) {
    const int32_t width = table.Width(dp, part.stage);
    leaders_[width] = 0;
    for (int32_t cp = 0; cp < table.cp(); ++cp) replicas_.push_back({dp, cp, width});
  }
}

const std::vector<RankList>& GroupsOfLeaders::HomesAt(const UnitFamily& family, int64_t unit) {
  for (auto& [width, tp] : leaders_) tp = LeaderOf(plan_, part_.module, width, family, unit);
  const auto [entry, is_new] = homes_.try_emplace(leaders_);
  if (is_new) {
    const ReplicaTable& table = plan_.replicas(part_.module);
    RankList group;
    for (const Replica& replica : replicas_) {
      group.push_back(table.At(replica.dp, part_.stage, replica.cp, leaders_.at(replica.width)));
    }
    entry->second = HomesOf(plan_, part_.module, group);
  }
  return entry->second;
}

std::vector<RankList> HomesOf(const Plan& plan, int32_t module, const RankList& group) {
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module)];
  const size_t count = group.size();
  const auto node = [&](size_t replica) -> const NodeName& {
    return plan.devices[static_cast<size_t>(group[replica].value)].node;
  };
  // Of each replica how many from it on share its node; `count`: all of them.
  std::vector<size_t> run(count, count);
  for (size_t i = 2 * count; i-- > 0;) {
    const size_t at = i % count, next = (at + 1) % count;
    run[at] = node(at) != node(next) ? 1 : std::min(run[next] + 1, count);
  }
  const auto copies =
      IsMirrored(plan, module) ? static_cast<size_t>(layout.state_copies) : size_t{1};
  // As far on as a node reaches, so that where nodes are equally large each mirror has one primary.
  const size_t longest = count == 0 ? 0 : *std::max_element(run.begin(), run.end());
  const size_t stride = longest < count ? longest : 1;
  std::vector<RankList> homes(count);
  for (size_t primary = 0; primary < count; ++primary) {
    RankList& mine = homes[primary];
    mine.push_back(group[primary]);
    for (const bool others : {true, false}) {
      for (size_t step = 0; step < count && mine.size() < copies;) {
        const size_t at = (primary + stride + step) % count;
        const bool apart = node(at) != node(primary);
        if (apart == others && at != primary) mine.push_back(group[at]);
        step += others && !apart ? run[at] : 1;
      }
    }
  }
  return homes;
}

bool IsMirrored(const Plan& plan, int32_t module) {
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module)];
  return layout.state_home == job::StateHome::kMirror && layout.state_copies > 1;
}

bool HasHostHome(const Plan& plan, int32_t module) {
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module)];
  return layout.state_home == job::StateHome::kHost && layout.state_copies > 1;
}

bool CopiesToHost(const Plan& plan) {
  return std::any_of(plan.modules.begin(), plan.modules.end(), [&](const ModulePlan& module) {
    return HasHostHome(plan, module.index) &&
           std::any_of(module.trains.begin(), module.trains.end(),
                       [](const Trains& part) { return part.weights; });
  });
}

}  // namespace phalanx::plan

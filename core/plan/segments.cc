#include "core/plan/segments.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/plan/parameters.h"
#include "core/plan/reduction.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

// One replica of one stage: its ranks and what each holds.
struct Replica {
  RankList ranks;
  std::vector<UnitRange> units;  // of each rank
};

std::vector<Replica> ReplicasOf(const Plan& plan, int32_t module, int32_t pp,
                                const UnitFamily& family) {
  std::vector<Replica> replicas;
  const ReplicaTable& table = plan.replicas(module);
  for (const int32_t dp : table.order()) {
    for (int32_t cp = 0; cp < table.cp(); ++cp) {
      Replica replica{.ranks = plan.TensorGroup(module, dp, pp, cp)};
      Place place{.module = module, .width = static_cast<int32_t>(replica.ranks.size())};
      for (; place.tp < place.width; ++place.tp) {
        replica.units.push_back(HeldUnits(plan, place, family));
      }
      replicas.push_back(std::move(replica));
    }
  }
  return replicas;
}

std::vector<RankList> HoldersOf(const std::vector<Replica>& replicas, int64_t unit) {
  std::vector<RankList> holders;
  for (const Replica& replica : replicas) {
    RankList ranks;
    for (size_t i = 0; i < replica.ranks.size(); ++i) {
      const UnitRange& units = replica.units[i];
      if (units.first <= unit && unit < units.end()) ranks.push_back(replica.ranks[i]);
    }
    holders.push_back(std::move(ranks));
  }
  return holders;
}

void AppendFamily(const Plan& plan, int32_t module, int32_t pp, const UnitFamily& family,
                  std::vector<Segment>* segments) {
  const std::vector<Replica> replicas = ReplicasOf(plan, module, pp, family);
  // Holders change only where some rank's run begins or ends.
  std::set<int64_t> cuts;
  for (const Replica& replica : replicas) {
    for (const UnitRange& units : replica.units) {
      if (units.count == 0) continue;
      cuts.insert(units.first);
      cuts.insert(units.end());
    }
  }
  for (auto cut = cuts.begin(); cut != cuts.end() && std::next(cut) != cuts.end(); ++cut) {
    segments->push_back({.module = module,
                         .pp = pp,
                         .family = family,
                         .units = {*cut, *std::next(cut) - *cut},
                         .holders = HoldersOf(replicas, *cut)});
  }
}

// The unit families that a stage holds, in order.
std::vector<UnitFamily> FamiliesOf(const Plan& plan, const ModulePlan& layout, int32_t pp) {
  bool first = false, last = false;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    first |= layout.IsFirst(pp, chunk);
    last |= layout.IsLast(pp, chunk);
  }
  std::vector<UnitFamily> families = {{UnitKind::kAttention}, {UnitKind::kKv}, {UnitKind::kMlp}};
  for (size_t i = 0; last && i < plan.spec.edges.size(); ++i) {
    const job::Edge& edge = plan.spec.edges[i];
    if (edge.from == layout.index && edge.projector.has_value()) {
      families.push_back({UnitKind::kMlp, static_cast<int32_t>(i)});
    }
  }
  const job::FamilyTraits& traits = job::TraitsOf(plan.module_spec(layout.index).architecture);
  if (traits.vocabulary() && (first || last)) families.push_back({UnitKind::kVocabulary});
  families.push_back({UnitKind::kReplicated});
  return families;
}

// Tensor coordinates of the stages whose replicas have one width, in the first replica that there
// is; of modules without architecture none. Until `see` returns false.
template <typename See>
void VisitTensorRanks(const Plan& plan, See see) {
  for (const ModulePlan& layout : plan.modules) {
    if (!job::TraitsOf(plan.module_spec(layout.index).architecture).known()) continue;
    for (int32_t pp = 0; pp < layout.pp(); ++pp) {
      if (!layout.replicas.EqualWidths(pp)) continue;
      Place place{.module = layout.index,
                  .dp = layout.replicas.FirstPresent(),
                  .pp = pp,
                  .width = layout.replicas.WidestOf(pp)};
      for (; place.tp < place.width; ++place.tp) {
        if (!see(place)) return;
      }
    }
  }
}

using SegmentAt = std::map<std::tuple<int32_t, int32_t, UnitFamily, int64_t>, int32_t>;

// What a rank leads of one segment in one matrix, in its flat buffers.
struct LedRun {
  UnitRange elements;
  int32_t segment = 0;
};

// Of one bucket, ascending.
std::vector<LedRun> LedRuns(const Place& place, const BucketRulers& bucket,
                            const std::vector<Segment>& segments, const SegmentAt& segment_at) {
  std::vector<LedRun> runs;
  for (const LedSlabs& slabs : bucket.slabs) {
    int64_t offset = slabs.offset;
    for (int64_t unit = slabs.units.first; unit < slabs.units.end();) {
      const int32_t segment =
          std::prev(segment_at.upper_bound({place.module, place.pp, slabs.family, unit}))->second;
      const int64_t end =
          std::min(slabs.units.end(), segments[static_cast<size_t>(segment)].units.end());
      runs.push_back({{offset, (end - unit) * slabs.elements}, segment});
      offset = runs.back().elements.end();
      unit = end;
    }
  }
  return runs;
}

// Of one chunk of one tensor coordinate of a stage. Ends early beyond kSharesMax.
void AppendShares(const Plan& plan, const Place& place, int32_t chunk,
                  const std::vector<Segment>& segments, const SegmentAt& segment_at,
                  const std::vector<RankList>& homes, std::vector<Share>* shares) {
  const StageParameters parameters = ParametersOf(plan, place, chunk);
  const std::vector<BucketRulers> rulers = RulersOf(plan, place, parameters);
  for (size_t b = 0; b < rulers.size(); ++b) {
    const UnitRange bucket{parameters.buckets[b].offset, parameters.buckets[b].elements};
    const int64_t part = EvenShare(bucket, parameters.replicas, 0).count;
    std::map<int32_t, int64_t> before;                 // elements of each segment so far
    std::map<std::pair<int32_t, int64_t>, size_t> at;  // (segment, replica) -> index into shares
    for (const LedRun& run : LedRuns(place, rulers[b], segments, segment_at)) {
      for (int64_t begin = run.elements.first; begin < run.elements.end();) {
        const int64_t replica = (begin - bucket.first) / part;
        const int64_t end = std::min(run.elements.end(), bucket.first + (replica + 1) * part);
        const auto [entry, is_new] = at.try_emplace({run.segment, replica}, shares->size());
        if (is_new) {
          if (shares->size() > kSharesMax) return;
          shares->push_back({.module = place.module,
                             .pp = place.pp,
                             .chunk = chunk,
                             .segment = run.segment,
                             .bucket = static_cast<int32_t>(b),
                             .elements = {before[run.segment], 0},
                             .homes = homes[static_cast<size_t>(replica)],
                             .host = HasHostHome(plan, place.module)});
        }
        (*shares)[entry->second].elements.count += end - begin;
        before[run.segment] += end - begin;
        begin = end;
      }
    }
  }
}

// Of a part whose replicas differ in width. Ends early beyond kSharesMax.
void AppendCutShares(const Plan& plan, const PartId& part, const std::vector<Segment>& segments,
                     const SegmentAt& segment_at, std::vector<Share>* shares) {
  const std::vector<BucketRulers> rulers = RulersOf(plan, part);
  const std::vector<std::vector<RulerShare>> buckets = CutShares(plan, part);
  std::map<RankList, std::vector<RankList>> homes;  // by the leaders of each replica
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (const RulerShare& share : buckets[b]) {
      const int64_t of_unit = rulers[b].Find(share.family)->unit_elements;
      // Its units have the same leaders, but perhaps not the same holders.
      for (int64_t begin = share.elements.first; begin < share.elements.end();) {
        if (shares->size() > kSharesMax) return;
        const int64_t unit = begin / of_unit;
        const int32_t at =
            std::prev(segment_at.upper_bound({part.module, part.stage, share.family, unit}))
                ->second;
        const Segment& segment = segments[static_cast<size_t>(at)];
        const int64_t end = std::min(share.elements.end(), segment.units.end() * of_unit);
        RankList leaders;
        for (const RankList& holders : segment.holders) leaders.push_back(holders.front());
        auto of_leaders = homes.find(leaders);
        if (of_leaders == homes.end())
          of_leaders = homes.emplace(leaders, HomesOf(plan, part.module, leaders)).first;
        shares->push_back({.module = part.module,
                           .pp = part.stage,
                           .chunk = part.chunk,
                           .segment = at,
                           .bucket = static_cast<int32_t>(b),
                           .elements = {begin - segment.units.first * of_unit, end - begin},
                           .homes = of_leaders->second[static_cast<size_t>(share.replica)],
                           .host = HasHostHome(plan, part.module)});
        begin = end;
      }
    }
  }
}

}  // namespace

std::vector<Segment> Segments(const Plan& plan) {
  std::vector<Segment> segments;
  for (const ModulePlan& layout : plan.modules) {
    if (!job::TraitsOf(plan.module_spec(layout.index).architecture).known()) continue;
    for (int32_t pp = 0; pp < layout.pp(); ++pp) {
      for (const UnitFamily& family : FamiliesOf(plan, layout, pp)) {
        AppendFamily(plan, layout.index, pp, family, &segments);
      }
    }
  }
  return segments;
}

std::vector<StateHomes> HomesOfState(const Plan& plan) {
  std::vector<StateHomes> all;
  VisitTensorRanks(plan, [&](const Place& place) {
    all.push_back({.module = place.module,
                   .pp = place.pp,
                   .tp = place.tp,
                   .homes = HomesOf(plan, place.module, plan.DataGroupOf(place)),
                   .host = HasHostHome(plan, place.module)});
    return true;
  });
  return all;
}

std::optional<std::vector<Share>> Shares(const Plan& plan) {
  const std::vector<Segment> segments = Segments(plan);
  SegmentAt segment_at;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    segment_at[{segment.module, segment.pp, segment.family, segment.units.first}] =
        static_cast<int32_t>(i);
  }
  std::vector<Share> shares;
  VisitTensorRanks(plan, [&](const Place& place) {
    const std::vector<RankList> homes = HomesOf(plan, place.module, plan.DataGroupOf(place));
    const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
    for (int32_t chunk = 0; chunk < chunks && shares.size() <= kSharesMax; ++chunk) {
      AppendShares(plan, place, chunk, segments, segment_at, homes, &shares);
    }
    return shares.size() <= kSharesMax;
  });
  for (const ModulePlan& layout : plan.modules) {
    if (!job::TraitsOf(plan.module_spec(layout.index).architecture).known()) continue;
    for (int32_t pp = 0; pp < layout.pp(); ++pp) {
      if (layout.replicas.EqualWidths(pp)) continue;
      for (int32_t chunk = 0; chunk < layout.chunks() && shares.size() <= kSharesMax; ++chunk)
        AppendCutShares(plan, {layout.index, pp, chunk}, segments, segment_at, &shares);
    }
  }
  if (shares.size() > kSharesMax) return std::nullopt;
  std::stable_sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    return std::tie(a.segment, a.chunk, a.bucket, a.elements.first) <
           std::tie(b.segment, b.chunk, b.bucket, b.elements.first);
  });
  return shares;
}

}  // namespace phalanx::plan

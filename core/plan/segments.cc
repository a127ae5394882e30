#include "core/plan/segments.h"

#include <algorithm>
#include <set>

namespace phalanx::plan {
namespace {

UnitRange UnitsOf(const Shard& shard, UnitFamily family) {
  switch (family) {
    case UnitFamily::kAttention:
      return shard.query_heads;
    case UnitFamily::kKv:
      return shard.kv_heads;
    case UnitFamily::kMlp:
      return shard.mlp_blocks;
    case UnitFamily::kVocabulary:
      return shard.vocabulary_blocks;
    case UnitFamily::kReplicated:
      break;
  }
  return {0, 1};
}

// One replica of one stage: its ranks and what each holds.
struct Replica {
  RankList ranks;
  std::vector<UnitRange> units;  // of each rank
};

std::vector<Replica> ReplicasOf(const Plan& plan, int32_t module, int32_t pp, UnitFamily family) {
  std::vector<Replica> replicas;
  const ReplicaTable& table = plan.replicas(module);
  for (int32_t dp = 0; dp < table.replicas(); ++dp) {
    if (!table.Present(dp)) continue;
    for (int32_t cp = 0; cp < table.cp(); ++cp) {
      Replica replica{.ranks = plan.TensorGroup(module, dp, pp, cp)};
      const auto width = static_cast<int32_t>(replica.ranks.size());
      for (int32_t tp = 0; tp < width; ++tp) {
        const Shard shard = ShardOf(plan.module_spec(module).architecture, width, tp);
        replica.units.push_back(UnitsOf(shard, family));
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

void AppendFamily(const Plan& plan, int32_t module, int32_t pp, UnitFamily family, size_t* index,
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
    Segment segment{.module = module,
                    .pp = pp,
                    .family = family,
                    .units = {*cut, *std::next(cut) - *cut},
                    .holders = HoldersOf(replicas, *cut)};
    const size_t primary = (*index)++ % replicas.size();
    segment.homes.push_back(segment.holders[primary].front());
    if (replicas.size() > 1) {
      segment.homes.push_back(segment.holders[(primary + 1) % replicas.size()].front());
    }
    segments->push_back(std::move(segment));
  }
}

}  // namespace

std::vector<Segment> Segments(const Plan& plan) {
  std::vector<Segment> segments;
  for (const ModulePlan& layout : plan.modules) {
    const job::FamilyTraits& traits = job::TraitsOf(plan.module_spec(layout.index).architecture);
    if (!traits.known()) continue;
    for (int32_t pp = 0; pp < layout.pp(); ++pp) {
      size_t index = 0;
      for (UnitFamily family : {UnitFamily::kAttention, UnitFamily::kKv, UnitFamily::kMlp,
                                UnitFamily::kVocabulary, UnitFamily::kReplicated}) {
        const bool ends = pp == 0 || pp == layout.pp() - 1;
        if (family == UnitFamily::kVocabulary && (!traits.vocabulary() || !ends)) continue;
        AppendFamily(plan, layout.index, pp, family, &index, &segments);
      }
    }
  }
  return segments;
}

}  // namespace phalanx::plan

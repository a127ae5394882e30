#include "core/plan/segments.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/plan/parameters.h"

namespace phalanx::plan {
namespace {

UnitRange UnitsOf(const TensorUnits& units, UnitKind kind) {
  switch (kind) {
    case UnitKind::kAttention:
      return units.query_heads;
    case UnitKind::kKv:
      return units.kv_heads;
    case UnitKind::kMlp:
      return units.mlp_blocks;
    case UnitKind::kVocabulary:
      return units.vocabulary_blocks;
    case UnitKind::kReplicated:
      break;
  }
  return {0, 1};
}

// What a segment is of, beside its units.
struct Kind {
  UnitKind units = UnitKind::kAttention;
  int32_t edge = -1;
  friend auto operator<=>(const Kind&, const Kind&) = default;
};

UnitRange UnitsOf(const Plan& plan, int32_t module, const Kind& kind, int32_t width, int32_t tp) {
  const job::Architecture& architecture = plan.module_spec(module).architecture;
  if (kind.edge < 0) return UnitsOf(TensorUnitsOf(architecture, width, tp), kind.units);
  const job::Edge& edge = plan.spec.edges[static_cast<size_t>(kind.edge)];
  return EvenSplit(BlockCount(edge.projector->hidden_size, architecture.block), width, tp);
}

// One replica of one stage: its ranks and what each holds.
struct Replica {
  RankList ranks;
  std::vector<UnitRange> units;  // of each rank
};

std::vector<Replica> ReplicasOf(const Plan& plan, int32_t module, int32_t pp, const Kind& kind) {
  std::vector<Replica> replicas;
  const ReplicaTable& table = plan.replicas(module);
  for (int32_t dp = 0; dp < table.replicas(); ++dp) {
    if (!table.Present(dp)) continue;
    for (int32_t cp = 0; cp < table.cp(); ++cp) {
      Replica replica{.ranks = plan.TensorGroup(module, dp, pp, cp)};
      const auto width = static_cast<int32_t>(replica.ranks.size());
      for (int32_t tp = 0; tp < width; ++tp) {
        replica.units.push_back(UnitsOf(plan, module, kind, width, tp));
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

void AppendKind(const Plan& plan, int32_t module, int32_t pp, const Kind& kind,
                std::vector<Segment>* segments) {
  const std::vector<Replica> replicas = ReplicasOf(plan, module, pp, kind);
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
                         .kind = kind.units,
                         .units = {*cut, *std::next(cut) - *cut},
                         .edge = kind.edge,
                         .holders = HoldersOf(replicas, *cut)});
  }
}

// Kinds of units that a stage holds.
std::vector<Kind> KindsOf(const Plan& plan, const ModulePlan& layout, int32_t pp) {
  bool first = false, last = false;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    first |= layout.IsFirst(pp, chunk);
    last |= layout.IsLast(pp, chunk);
  }
  std::vector<Kind> kinds = {{UnitKind::kAttention}, {UnitKind::kKv}, {UnitKind::kMlp}};
  for (size_t i = 0; last && i < plan.spec.edges.size(); ++i) {
    const job::Edge& edge = plan.spec.edges[i];
    if (edge.from == layout.index && edge.projector.has_value()) {
      kinds.push_back({UnitKind::kMlp, static_cast<int32_t>(i)});
    }
  }
  const job::FamilyTraits& traits = job::TraitsOf(plan.module_spec(layout.index).architecture);
  if (traits.vocabulary() && (first || last)) kinds.push_back({UnitKind::kVocabulary});
  kinds.push_back({UnitKind::kReplicated});
  return kinds;
}

// A run of elements of one kind that a rank leads, in its flat buffer.
struct LedRun {
  int64_t begin = 0, end = 0;
  Kind kind;
  int64_t unit = 0;  // the first one
};

// The rest of kind replicated: norms and biases behind row-parallel products, inputs of encoders.
Kind KindOf(const LocalMatrix& matrix) {
  const std::string& role = matrix.role;
  const auto is = [&role](std::initializer_list<absl::string_view> names) {
    return std::find(names.begin(), names.end(), role) != names.end();
  };
  if (is({"qkv", "qkv_bias", "o"})) return {UnitKind::kAttention};
  if (is({"gate_up", "up", "up_bias", "down"})) return {UnitKind::kMlp};
  if (is({"projector_up", "projector_up_bias", "projector_down"})) {
    return {UnitKind::kMlp, matrix.edge};
  }
  if (is({"embedding", "head"})) return {UnitKind::kVocabulary};
  return {UnitKind::kReplicated};
}

// Everything of a part that trains and that its rank leads, ascending.
std::vector<LedRun> LedRuns(const Plan& plan, const Place& place,
                            const StageParameters& parameters) {
  const int64_t head_size = HeadSize(plan.module_spec(place.module).architecture);
  std::vector<LedRun> runs;
  for (const LocalMatrix& matrix : parameters.matrices) {
    if (!matrix.trains) continue;
    const Kind kind = KindOf(matrix);
    const UnitRange units = UnitsOf(plan, place.module, kind, place.width, place.tp);
    const bool heads = matrix.role == "qkv" || matrix.role == "qkv_bias";
    for (const Piece& piece : matrix.pieces) {
      if (!piece.primary) continue;
      LedRun run{.begin = matrix.offset + piece.local_row * matrix.cols,
                 .kind = kind,
                 .unit = units.first};
      run.end = run.begin + piece.rows * matrix.cols;
      // Query rows stand first.
      if (heads && piece.local_row >= units.count * head_size) {
        run.kind = {UnitKind::kKv};
        run.unit = piece.logical_row / head_size;
      }
      runs.push_back(run);
    }
  }
  std::sort(runs.begin(), runs.end(),
            [](const LedRun& a, const LedRun& b) { return a.begin < b.begin; });
  return runs;
}

// The primary in replica `replica` of a data group, then the mirrors.
RankList HomesOf(const Plan& plan, const ModuleLayout& layout, const RankList& group,
                 size_t replica) {
  RankList homes = {group[replica]};
  if (layout.state_home != job::StateHome::kMirror) return homes;
  RankList others;
  for (size_t i = 1; i < group.size(); ++i) others.push_back(group[(replica + i) % group.size()]);
  const auto node = [&plan](Rank rank) {
    return plan.devices[static_cast<size_t>(rank.value)].node;
  };
  std::stable_partition(others.begin(), others.end(),
                        [&](Rank rank) { return node(rank) != node(homes[0]); });
  const size_t mirrors =
      std::min(others.size(), static_cast<size_t>(std::max(0, layout.state_copies - 1)));
  homes.insert(homes.end(), others.begin(), others.begin() + static_cast<std::ptrdiff_t>(mirrors));
  return homes;
}

using SegmentAt = std::map<std::tuple<int32_t, int32_t, Kind, int64_t>, int32_t>;

// Of one chunk of one tensor coordinate of a stage.
void AppendShares(const Plan& plan, const Place& place, int32_t chunk, const SegmentAt& segment_at,
                  std::vector<Share>* shares) {
  const StageParameters parameters = ParametersOf(plan, place, chunk);
  const std::vector<LedRun> runs = LedRuns(plan, place, parameters);
  const RankList group = plan.DataGroupOf(place);
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(place.module)];
  auto run = runs.begin();
  for (size_t b = 0; b < parameters.buckets.size(); ++b) {
    const Bucket& bucket = parameters.buckets[b];
    const int64_t part = bucket.elements / static_cast<int64_t>(group.size());
    std::map<int32_t, int64_t> before;                // elements of each segment so far
    std::map<std::pair<int32_t, size_t>, size_t> at;  // (segment, replica) -> index into shares
    for (; run != runs.end() && run->begin < bucket.offset + bucket.elements; ++run) {
      const int32_t segment = segment_at.at({place.module, place.pp, run->kind, run->unit});
      for (int64_t begin = run->begin; begin < run->end;) {
        const auto replica = static_cast<size_t>((begin - bucket.offset) / part);
        const int64_t cut = bucket.offset + static_cast<int64_t>(replica + 1) * part;
        const int64_t end = std::min(run->end, cut);
        const auto [entry, is_new] = at.try_emplace({segment, replica}, shares->size());
        if (is_new) {
          shares->push_back(
              {.module = place.module,
               .pp = place.pp,
               .chunk = chunk,
               .segment = segment,
               .bucket = static_cast<int32_t>(b),
               .elements = {before[segment], 0},
               .homes = HomesOf(plan, layout, group, replica),
               .host = layout.state_home == job::StateHome::kHost && layout.state_copies > 1});
        }
        (*shares)[entry->second].elements.count += end - begin;
        before[segment] += end - begin;
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
      for (const Kind& kind : KindsOf(plan, layout, pp)) {
        AppendKind(plan, layout.index, pp, kind, &segments);
      }
    }
  }
  return segments;
}

std::vector<Share> Shares(const Plan& plan) {
  const std::vector<Segment> segments = Segments(plan);
  SegmentAt segment_at;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    segment_at[{segment.module, segment.pp, Kind{segment.kind, segment.edge},
                segment.units.first}] = static_cast<int32_t>(i);
  }
  std::vector<Share> shares;
  for (const ModulePlan& layout : plan.modules) {
    if (!job::TraitsOf(plan.module_spec(layout.index).architecture).known()) continue;
    for (int32_t pp = 0; pp < layout.pp(); ++pp) {
      if (!layout.replicas.EqualWidths(pp)) continue;
      Place place{.module = layout.index,
                  .dp = layout.replicas.FirstPresent(),
                  .pp = pp,
                  .width = layout.replicas.WidestOf(pp)};
      for (; place.tp < place.width; ++place.tp) {
        for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
          AppendShares(plan, place, chunk, segment_at, &shares);
        }
      }
    }
  }
  std::stable_sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    return std::tie(a.segment, a.chunk, a.bucket, a.elements.first) <
           std::tie(b.segment, b.chunk, b.bucket, b.elements.first);
  });
  return shares;
}

}  // namespace phalanx::plan

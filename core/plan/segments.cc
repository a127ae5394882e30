#include "core/plan/segments.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "core/plan/parameters.h"
#include "core/plan/reduction.h"

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
  switch (matrix.role) {
    case MatrixRole::kQkv:
    case MatrixRole::kQkvBias:
    case MatrixRole::kO:
      return {UnitKind::kAttention};
    case MatrixRole::kGateUp:
    case MatrixRole::kUp:
    case MatrixRole::kUpBias:
    case MatrixRole::kDown:
      return {UnitKind::kMlp};
    case MatrixRole::kProjectorUp:
    case MatrixRole::kProjectorUpBias:
    case MatrixRole::kProjectorDown:
      return {UnitKind::kMlp, matrix.edge};
    case MatrixRole::kEmbedding:
    case MatrixRole::kHead:
      return {UnitKind::kVocabulary};
    default:
      return {UnitKind::kReplicated};
  }
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
    const bool heads = matrix.role == MatrixRole::kQkv || matrix.role == MatrixRole::kQkvBias;
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

// Of each replica of a data group the primary, then the mirrors: going round from it, first those
// on other nodes, then those on its own.
std::vector<RankList> HomesOf(const Plan& plan, const ModuleLayout& layout, const RankList& group) {
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
  const bool mirrored = layout.state_home == job::StateHome::kMirror;
  const size_t copies = mirrored ? static_cast<size_t>(std::max(1, layout.state_copies)) : 1;
  std::vector<RankList> homes(count);
  for (size_t primary = 0; primary < count; ++primary) {
    RankList& mine = homes[primary];
    mine.push_back(group[primary]);
    for (size_t step = 1; step < count && mine.size() < copies;) {
      const size_t at = (primary + step) % count;
      const bool apart = node(at) != node(primary);
      if (apart) mine.push_back(group[at]);
      step += apart ? 1 : run[at];
    }
    for (size_t step = 1; step < count && mine.size() < copies; ++step) {
      const size_t at = (primary + step) % count;
      if (node(at) == node(primary)) mine.push_back(group[at]);
    }
  }
  return homes;
}

bool HasHostHome(const ModuleLayout& layout) {
  return layout.state_home == job::StateHome::kHost && layout.state_copies > 1;
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

using SegmentAt = std::map<std::tuple<int32_t, int32_t, Kind, int64_t>, int32_t>;

// Of one chunk of one tensor coordinate of a stage. Ends early beyond kSharesMax.
void AppendShares(const Plan& plan, const Place& place, int32_t chunk, const SegmentAt& segment_at,
                  const std::vector<RankList>& homes, std::vector<Share>* shares) {
  const StageParameters parameters = ParametersOf(plan, place, chunk);
  const std::vector<LedRun> runs = LedRuns(plan, place, parameters);
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(place.module)];
  auto run = runs.begin();
  const std::vector<ReducedBucket> buckets = ReducedBuckets(parameters);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const ReducedBucket& bucket = buckets[b];
    std::map<int32_t, int64_t> before;                // elements of each segment so far
    std::map<std::pair<int32_t, size_t>, size_t> at;  // (segment, replica) -> index into shares
    for (; run != runs.end() && run->begin < bucket.elements.end(); ++run) {
      const int32_t segment = segment_at.at({place.module, place.pp, run->kind, run->unit});
      for (int64_t begin = run->begin; begin < run->end;) {
        const auto cut = std::find_if(
            bucket.shares.begin(), bucket.shares.end(),
            [begin](const BucketShare& share) { return begin < share.elements.end(); });
        const auto replica = static_cast<size_t>(cut->home);
        const int64_t end = std::min(run->end, cut->elements.end());
        const auto [entry, is_new] = at.try_emplace({segment, replica}, shares->size());
        if (is_new) {
          if (shares->size() > kSharesMax) return;
          shares->push_back({.module = place.module,
                             .pp = place.pp,
                             .chunk = chunk,
                             .segment = segment,
                             .bucket = static_cast<int32_t>(b),
                             .elements = {before[segment], 0},
                             .homes = homes[replica],
                             .host = HasHostHome(layout)});
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

std::vector<StateHomes> HomesOfState(const Plan& plan) {
  std::vector<StateHomes> all;
  VisitTensorRanks(plan, [&](const Place& place) {
    const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(place.module)];
    all.push_back({.module = place.module,
                   .pp = place.pp,
                   .tp = place.tp,
                   .homes = HomesOf(plan, layout, plan.DataGroupOf(place)),
                   .host = HasHostHome(layout)});
    return true;
  });
  return all;
}

std::optional<std::vector<Share>> Shares(const Plan& plan) {
  const std::vector<Segment> segments = Segments(plan);
  SegmentAt segment_at;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    segment_at[{segment.module, segment.pp, Kind{segment.kind, segment.edge},
                segment.units.first}] = static_cast<int32_t>(i);
  }
  std::vector<Share> shares;
  VisitTensorRanks(plan, [&](const Place& place) {
    const std::vector<RankList> homes = HomesOf(
        plan, plan.layout.modules[static_cast<size_t>(place.module)], plan.DataGroupOf(place));
    const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
    for (int32_t chunk = 0; chunk < chunks && shares.size() <= kSharesMax; ++chunk) {
      AppendShares(plan, place, chunk, segment_at, homes, &shares);
    }
    return shares.size() <= kSharesMax;
  });
  if (shares.size() > kSharesMax) return std::nullopt;
  std::stable_sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    return std::tie(a.segment, a.chunk, a.bucket, a.elements.first) <
           std::tie(b.segment, b.chunk, b.bucket, b.elements.first);
  });
  return shares;
}

}  // namespace phalanx::plan

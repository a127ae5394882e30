#include "core/plan/ruler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/plan/check.h"

namespace phalanx::plan {
namespace {

// Of everything but the keys and values in a matrix with queries.
UnitFamily FamilyOf(const LocalMatrix& matrix) {
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
    // Norms, biases behind row-parallel products, inputs of encoders.
    case MatrixRole::kPredict:
    case MatrixRole::kFinalNorm:
    case MatrixRole::kFinalNormBias:
    case MatrixRole::kNorm1:
    case MatrixRole::kNorm1Bias:
    case MatrixRole::kNorm2:
    case MatrixRole::kNorm2Bias:
    case MatrixRole::kOBias:
    case MatrixRole::kDownBias:
    case MatrixRole::kPatch:
    case MatrixRole::kPatchBias:
    case MatrixRole::kClass:
    case MatrixRole::kPosition:
    case MatrixRole::kPreNorm:
    case MatrixRole::kPreNormBias:
    case MatrixRole::kConv1:
    case MatrixRole::kConv1Bias:
    case MatrixRole::kConv2:
    case MatrixRole::kConv2Bias:
    case MatrixRole::kProjectorDownBias:
      break;
  }
  return {UnitKind::kReplicated};
}

// Rows of a matrix that one of its units has.
int64_t UnitRows(const job::Architecture& architecture, const LocalMatrix& matrix) {
  switch (FamilyOf(matrix).kind) {
    case UnitKind::kAttention:
    case UnitKind::kKv:
      return HeadSize(architecture);
    case UnitKind::kMlp:
      return matrix.role == MatrixRole::kGateUp ? 2 * architecture.block : architecture.block;
    case UnitKind::kVocabulary:
      return architecture.block;
    case UnitKind::kReplicated:
      break;
  }
  return matrix.rows;
}

// Collects the rulers of one bucket, matrix by matrix.
class Builder {
 public:
  Builder(const Plan& plan, const Place& place) : plan_(plan), place_(place) {}

  // `index`: of the matrix.
  void Add(const LocalMatrix& matrix, int32_t index) {
    matrix_ = index;
    const job::Architecture& architecture = plan_.module_spec(place_.module).architecture;
    if (matrix.role == MatrixRole::kHead && architecture.tied_head) return;
    const UnitFamily family = FamilyOf(matrix);
    const int64_t elements = UnitRows(architecture, matrix) * matrix.cols;
    AddSlabs(family, matrix.offset, elements);
    if (matrix.role != MatrixRole::kQkv && matrix.role != MatrixRole::kQkvBias) return;
    const int64_t queries = HeldUnits(plan_, place_, family).count;
    const UnitFamily kv{UnitKind::kKv};
    AddSlabs(kv, matrix.offset + queries * elements, elements);
    AddSlabs(kv, matrix.offset + (queries + HeldUnits(plan_, place_, kv).count) * elements,
             elements);
  }

  BucketRulers Build() && {
    std::sort(result_.rulers.begin(), result_.rulers.end(),
              [](const FamilyRuler& a, const FamilyRuler& b) { return a.family < b.family; });
    return std::move(result_);
  }

 private:
  // `held`: where the slabs of all units that the rank holds begin.
  void AddSlabs(const UnitFamily& family, int64_t held, int64_t elements) {
    const UnitRange led = LedUnits(plan_, place_, family);
    const int64_t before = led.first - HeldUnits(plan_, place_, family).first;
    result_.slabs.push_back({.family = family,
                             .units = led,
                             .offset = held + before * elements,
                             .elements = elements,
                             .matrix = matrix_});
    auto ruler = std::find_if(result_.rulers.begin(), result_.rulers.end(),
                              [&](const FamilyRuler& each) { return each.family == family; });
    if (ruler == result_.rulers.end()) {
      const Place whole{.module = place_.module};
      result_.rulers.push_back({.family = family, .units = HeldUnits(plan_, whole, family).count});
      ruler = std::prev(result_.rulers.end());
    }
    ruler->unit_elements += elements;
  }

  const Plan& plan_;
  const Place& place_;
  int32_t matrix_ = 0;
  BucketRulers result_;
};

}  // namespace

UnitRange HeldUnits(const Plan& plan, const Place& place, const UnitFamily& family) {
  const job::Architecture& architecture = plan.module_spec(place.module).architecture;
  if (family.edge >= 0) {
    const job::Edge& edge = plan.spec.edges[static_cast<size_t>(family.edge)];
    return EvenSplit(BlockCount(edge.projector->hidden_size, architecture.block), place.width,
                     place.tp);
  }
  const TensorUnits units = TensorUnitsOf(architecture, place.width, place.tp);
  switch (family.kind) {
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

UnitRange LedUnits(const Plan& plan, const Place& place, const UnitFamily& family) {
  UnitRange units = HeldUnits(plan, place, family);
  if (family.kind == UnitKind::kReplicated) return {0, place.tp == 0 ? 1 : 0};
  if (family.kind != UnitKind::kKv || units.count == 0) return units;
  // Ranks hold runs of query heads, so only the first KV head can be an earlier rank's too.
  const job::Architecture& architecture = plan.module_spec(place.module).architecture;
  if (HoldersOfKvHead(architecture, place.width, units.first).first < place.tp) {
    ++units.first;
    --units.count;
  }
  return units;
}

int32_t LeaderOf(const Plan& plan, int32_t module, int32_t width, const UnitFamily& family,
                 int64_t unit) {
  if (family.kind == UnitKind::kReplicated) return 0;
  if (family.kind == UnitKind::kKv) {
    const job::Architecture& architecture = plan.module_spec(module).architecture;
    return static_cast<int32_t>(HoldersOfKvHead(architecture, width, unit).first);
  }
  const int64_t units = HeldUnits(plan, {.module = module}, family).count;
  return static_cast<int32_t>(SplitIndexOf(units, width, unit));
}

const FamilyRuler* BucketRulers::Find(const UnitFamily& family) const {
  const auto found = std::find_if(rulers.begin(), rulers.end(),
                                  [&](const FamilyRuler& ruler) { return ruler.family == family; });
  return found == rulers.end() ? nullptr : &*found;
}

void BucketRulers::AppendRuns(const UnitFamily& family, UnitRange elements,
                              std::vector<UnitRange>* runs) const {
  if (elements.count == 0) return;
  const FamilyRuler* ruler = Find(family);
  PHALANX_CHECK(ruler != nullptr, "a bucket has the rulers of its families");
  for (int64_t at = elements.first; at < elements.end();) {
    const int64_t unit = at / ruler->unit_elements;
    int64_t begin = unit * ruler->unit_elements;  // of the slab, on the ruler
    for (const LedSlabs& slabs : this->slabs) {
      if (slabs.family != family) continue;
      PHALANX_CHECK(slabs.units.first <= unit && unit < slabs.units.end(),
                    "runs are asked of the rank that leads them");
      const int64_t end = std::min(begin + slabs.elements, elements.end());
      if (at < end) {
        const int64_t offset =
            slabs.offset + (unit - slabs.units.first) * slabs.elements + at - begin;
        if (runs->empty() || runs->back().end() != offset) runs->push_back({offset, 0});
        runs->back().count += end - at;
        at = end;
      }
      begin += slabs.elements;
    }
  }
}

std::vector<BucketRulers> RulersOf(const Plan& plan, const Place& place,
                                   const StageParameters& parameters) {
  std::vector<BucketRulers> buckets;
  for (const Bucket& bucket : parameters.buckets) {
    if (bucket.offset >= parameters.trained_extent) break;
    Builder builder(plan, place);
    for (int32_t i = 0; i < bucket.matrices; ++i) {
      const int32_t index = bucket.first_matrix + i;
      builder.Add(parameters.matrices[static_cast<size_t>(index)], index);
    }
    buckets.push_back(std::move(builder).Build());
  }
  return buckets;
}

std::vector<BucketRulers> RulersOf(const Plan& plan, const PartId& part) {
  const ReplicaTable& table = plan.replicas(part.module);
  Place place{.module = part.module, .dp = table.FirstPresent(), .pp = part.stage};
  place.width = table.Width(place.dp, place.pp);
  return RulersOf(plan, place, ParametersOf(plan, place, part.chunk));
}

}  // namespace phalanx::plan

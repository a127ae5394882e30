#include "core/plan/memory_estimate.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/plan/activations.h"
#include "core/plan/cost.h"
#include "core/plan/parameters.h"
#include "core/plan/samples.h"
#include "core/plan/shares.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using job::Modality;
using job::TraitsOf;

// Rows that an encoder makes of one sample at most: as many items as fit the context, all of them
// of the kind that it reads.
int64_t RowsOfSample(const Plan& plan, int32_t module) {
  const int64_t limit = plan.spec.data.value_or(job::Data{}).items_max;
  const int64_t context = plan.module_spec(plan.spec.language).architecture.context;
  const int64_t positions = plan.spec.PositionsOfItem(module);
  const int64_t fit = positions > 0 ? context / positions : 1;
  return std::max<int64_t>(1, std::min(limit, fit)) *
         job::RowsOfItem(plan.module_spec(module).architecture);
}

int64_t LongestRun(const std::vector<int64_t>& starts) {
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    longest = std::max(longest, starts[i + 1] - starts[i]);
  }
  return longest;
}

// Token rows that a module makes of one sample at most.
int64_t RowsOf(const Plan& plan, int32_t module) {
  const job::Architecture& architecture = plan.module_spec(module).architecture;
  return job::RowsOfItem(architecture) > 0 ? RowsOfSample(plan, module) : architecture.context;
}

// Samples of one microbatch on one replica of a module, at most.
int64_t SamplesOfLane(const Plan& plan, int32_t module) {
  if (module == plan.spec.language) return plan.spec.batch.micro;
  return LongestRun(
      LaneStarts(plan.modules[static_cast<size_t>(module)], CountOfMicrobatch(plan, 0)));
}

// Of elements of rows between products, those that each rank has: under sequence parallelism its
// part.
int64_t HereOf(const job::Module& module, const Place& place, int64_t elements) {
  return module.parallel.sequence ? (elements + place.width - 1) / place.width : elements;
}

// Elements of the messages that a part keeps: those that wait, and one that leaves of each kind.
int64_t MessageElements(const Plan& plan, const Place& place, int32_t chunk) {
  const PartId part = {place.module, place.pp, chunk};
  const auto of = [&](const Link& link) {
    const int64_t elements = SamplesOfLane(plan, part.module) * RowsOf(plan, link.from.module) *
                             plan.module_spec(link.to.module).architecture.hidden_size;
    return plan.IsSliced(link) ? HereOf(plan.module_spec(part.module), place, elements) : elements;
  };
  const auto trains = [&plan](const PartId& source) {
    return plan.modules[static_cast<size_t>(source.module)]
        .TrainsOf(source.stage, source.chunk)
        .any();
  };
  int64_t elements = 0;
  for (int32_t index : plan.LinksInto(part)) {
    const Link& link = plan.links[static_cast<size_t>(index)];
    elements += of(link) * (MessagesKeptMax(plan, link).forward + (trains(link.from) ? 1 : 0));
  }
  for (int32_t index : plan.LinksOutOf(part)) {
    const Link& link = plan.links[static_cast<size_t>(index)];
    elements += of(link) * (MessagesKeptMax(plan, link).backward + 1);
  }
  return elements;
}

// How the layers of a module keep operands that they round.
enum class Rounded : uint8_t {
  kNothing,
  kInFp8,          // in one byte
  kInComputeType,  // on a CPU, beside what is rounded
};
Rounded RoundedOf(const Plan& plan, const job::Module& module) {
  if (plan.spec.linear != job::LinearFormat::kFp8 || !TraitsOf(module.architecture).decoder())
    return Rounded::kNothing;
  return plan.spec.resources.device == job::DeviceKind::kGpu ? Rounded::kInFp8
                                                             : Rounded::kInComputeType;
}

// Bytes of the weights that layers round, in the forms that their passes read.
int64_t RoundedBytes(const StageParameters& parameters, Rounded rounded, int64_t bytes_of_one,
                     bool layers_back) {
  if (rounded == Rounded::kNothing) return 0;
  int64_t elements = 0;
  for (const LocalMatrix& matrix : parameters.matrices) {
    switch (matrix.role) {
      case MatrixRole::kQkv:
      case MatrixRole::kO:
      case MatrixRole::kGateUp:
      case MatrixRole::kDown:
        elements += matrix.rows * matrix.cols;
        break;
      default:
        break;
    }
  }
  if (rounded == Rounded::kInComputeType) return elements * bytes_of_one;
  return layers_back ? 2 * elements : elements;
}

// Elements of one row.
struct KeptElements {
  int64_t forward = 0;   // that one layer keeps until its backward pass
  int64_t backward = 0;  // that the backward pass reads
  int64_t waiting = 0;   // that waits for the weight pass, where it is one of its own
};
KeptElements KeptOf(const job::Module& module, const Place& place, Rounded rounded) {
  const job::Architecture& a = module.architecture;
  const TensorUnits units = TensorUnitsOf(a, place.width, place.tp);
  const int64_t q = units.query_heads.count * HeadSize(a), kv = units.kv_heads.count * HeadSize(a);
  const int64_t mlp = units.mlp_blocks.count * a.block;
  const int64_t in = TraitsOf(a).gated() ? 2 * mlp : mlp;  // gate and up
  // Of a row between products, which is here or, under sequence parallelism, may be elsewhere.
  const int64_t hidden = HereOf(module, place, a.hidden_size);
  KeptElements kept;
  // The two inputs of products are whole when their weights' gradients are due.
  kept.backward = 2 * hidden + 2 * a.hidden_size + 2 * q + 2 * kv + in + mlp;
  // They, and the gradients that meet them: each product's operands.
  kept.waiting = 4 * a.hidden_size + 2 * q + 2 * kv + in + mlp;
  switch (module.recompute) {
    case job::Recompute::kFull:
      kept.forward = hidden;
      break;
    case job::Recompute::kSelective:
      kept.forward = 2 * hidden + q + 2 * kv + in;
      break;
    case job::Recompute::kNone:
      kept.forward = 4 * hidden + 2 * q + 2 * kv + in + mlp;
      if (module.frozen) kept.forward = kept.backward = 2 * hidden + 2 * q + 2 * kv + in;
      break;
  }
  if (rounded == Rounded::kNothing || module.frozen) return kept;
  const bool recomputes = module.recompute != job::Recompute::kNone;
  // Attention's output is kept twice: its own backward pass reads it as it is.
  if (rounded == Rounded::kInComputeType) {
    kept.backward += q;
    if (!recomputes) kept.forward += q;
    return kept;
  }
  kept.waiting /= 2;
  // What is computed again is rounded when its product's gradient is due.
  if (recomputes) return kept;
  // Inputs of products take half; slices are kept as they are.
  kept.forward += (q - mlp) / 2 - (module.parallel.sequence ? 0 : hidden);
  kept.backward += (q - mlp) / 2 - a.hidden_size;
  return kept;
}

// Elements of one row that what comes before an encoder's layers keeps.
int64_t KeptBefore(const job::Architecture& a) {
  switch (TraitsOf(a).modality) {
    case Modality::kImage:
      return 3 * a.patch_size * a.patch_size + a.hidden_size;
    case Modality::kSound:  // two frames a row, then both convolutions
      return 2 * a.mel_bins + 2 * a.hidden_size + a.hidden_size;
    case Modality::kText:
    case Modality::kNone:
      break;
  }
  return 0;
}

// Elements of one row that the projectors of a module keep.
int64_t KeptByProjectors(const Plan& plan, const Place& place, bool layers_back) {
  const job::Architecture& a = plan.module_spec(place.module).architecture;
  int64_t kept = 0;
  for (const job::Edge& edge : plan.spec.edges) {
    if (edge.from != place.module || !edge.projector.has_value()) continue;
    const int64_t blocks = BlockCount(edge.projector->hidden_size, a.block);
    const int64_t inner = EvenSplit(blocks, place.width, place.tp).count * a.block;
    if (!edge.projector->frozen) {
      kept += a.hidden_size + 2 * inner;
    } else if (layers_back) {
      kept += inner;
    }
  }
  return kept;
}

// Elements of one row that one part keeps of one microbatch, and once for all of them.
struct PartElements {
  int64_t kept = 0, once = 0;
};

// Of layers that have a backward pass. `one`: it is one pass.
PartElements ElementsOfLayers(const KeptElements& layer, int64_t layers, bool delays, bool one) {
  const auto above = [](int64_t elements, int64_t kept) {
    return std::max<int64_t>(0, elements - kept);
  };
  if (delays) {
    // Before its input pass a microbatch may keep more than behind it.
    const int64_t kept = std::max(layer.forward, layer.waiting);
    return {layers * kept, above(layer.backward, kept)};
  }
  PartElements elements = {layers * layer.forward, above(layer.backward, layer.forward)};
  if (one) return elements;
  // While the input pass is at its last layer, all others wait for the weight pass; at its first
  // layer, none does.
  elements.once = (layers - 1) * above(layer.waiting, layer.forward) +
                  above(std::max(layer.backward, layer.waiting), layer.forward);
  return elements;
}

PartElements ElementsOf(const Plan& plan, const Place& place, int32_t chunk) {
  const job::Module& module = plan.module_spec(place.module);
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const bool layers_back = layout.TrainsOf(place.pp, chunk).inputs || !module.frozen;
  const KeptElements layer = KeptOf(module, place, RoundedOf(plan, module));
  PartElements elements;
  if (layers_back) {
    const bool one = module.frozen || BackwardIsOne(plan, {place.module, place.pp, chunk});
    elements = ElementsOfLayers(layer, layout.layers(place.pp, chunk).count,
                                !module.frozen && DelaysWeights(plan), one);
    if (layout.IsFirst(place.pp, chunk)) elements.kept += KeptBefore(module.architecture);
    if (layout.IsLast(place.pp, chunk) && !module.frozen &&
        LabelledAloneLeave(plan.spec, place.module)) {
      const bool at_once = module.recompute != job::Recompute::kNone && !DelaysWeights(plan);
      const int64_t queries =
          TensorUnitsOf(module.architecture, place.width, place.tp).query_heads.count *
          HeadSize(module.architecture);
      (at_once ? elements.once : elements.kept) += queries;
    }
  } else {
    elements.once = layer.backward;
  }
  if (layout.IsLast(place.pp, chunk)) {
    elements.kept += KeptByProjectors(plan, place, layers_back);
  }
  return elements;
}

// Elements that travel between the copies of a replica (copies.h), of which a rank packs its own.
struct PackedElements {
  int64_t folded = 0, spread = 0;
};
PackedElements PackedOf(const Plan& plan, const Place& place, const StageParameters& parameters) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const auto others = [&](const Piece& piece) -> int64_t {
    // Inside a rank nothing is packed.
    if (piece.holding == Holding::kTied) return layout.StageAt(0) == layout.LastStage() ? 0 : 1;
    // A follower exchanges with its leader alone.
    return piece.primary ? piece.holders - 1 : 1;
  };
  PackedElements packed;
  for (const LocalMatrix& matrix : parameters.matrices) {
    for (const Piece& piece : matrix.pieces) {
      if (!matrix.trains || piece.holding == Holding::kExclusive) continue;
      const int64_t elements = piece.rows * matrix.cols * others(piece);
      packed.spread += elements;
      if (piece.holding != Holding::kDuplicate) packed.folded += elements;
    }
  }
  return packed;
}

// Of each chunk of a stage; none where its replicas have one width.
using StageLoads = std::vector<HomeLoads>;
StageLoads LoadsOfStage(const Plan& plan, int32_t module, int32_t pp) {
  StageLoads loads;
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  if (layout.replicas.EqualWidths(pp)) return loads;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    loads.push_back(HomeLoadsOf(plan, {module, pp, chunk}));
  }
  return loads;
}

int64_t SectionBytes(int64_t bytes) {
  return (bytes + kHostSectionAlignment - 1) / kHostSectionAlignment * kHostSectionAlignment;
}

// Of what does not train and the rank leads some of, as the first replica writes it.
int64_t FrozenBytes(const StageParameters& parameters, int64_t bytes_of_one) {
  const bool leads = std::any_of(
      parameters.matrices.begin(), parameters.matrices.end(), [](const LocalMatrix& matrix) {
        return !matrix.trains &&
               std::any_of(matrix.pieces.begin(), matrix.pieces.end(),
                           [](const Piece& piece) { return piece.primary && piece.rows > 0; });
      });
  return leads ? SectionBytes((parameters.elements - parameters.trained_extent) * bytes_of_one) : 0;
}

// Of one place, of which replica it may be.
struct PlaceMemory {
  MemoryEstimate estimate;
  int64_t frozen = 0;  // in the snapshot, where it is of the first replica
};

// `load`: where replicas have several widths.
void AddPart(const Plan& plan, const Place& place, int32_t chunk, const HomeLoad* load,
             PlaceMemory* memory) {
  MemoryEstimate* estimate = &memory->estimate;
  const job::Module& module = plan.module_spec(place.module);
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const int64_t bytes = BytesOf(plan.spec.compute), wide_bytes = std::max<int64_t>(4, bytes);
  const StageParameters parameters = ParametersOf(plan, place, chunk);
  estimate->parameters += parameters.elements * bytes;
  estimate->parameters += RoundedBytes(parameters, RoundedOf(plan, module), bytes,
                                       layout.TrainsOf(place.pp, chunk).inputs || !module.frozen);
  if (parameters.trained_extent > 0) {
    estimate->gradients += parameters.trained_extent * wide_bytes;
    const int64_t bytes_of_state = StateBytes(plan.spec.compute);
    estimate->optimizer += load != nullptr
                               ? bytes_of_state * load->own
                               : bytes_of_state * parameters.LedElements() / parameters.replicas;
    const int64_t own = load != nullptr ? load->own
                                        : (parameters.LedElements() + parameters.replicas - 1) /
                                              parameters.replicas;
    const int64_t written = 3 * SectionBytes(own * wide_bytes);  // masters, two moments
    if (CopiesToHost(plan)) estimate->host.copies += 2 * written;
    if (plan.spec.checkpoint.has_value()) estimate->host.snapshot += written;
    const PackedElements packed = PackedOf(plan, place, parameters);
    estimate->parameters += packed.spread * bytes;
    estimate->gradients += packed.folded * wide_bytes;
  }
  if (plan.spec.checkpoint.has_value()) memory->frozen += FrozenBytes(parameters, bytes);
  const int64_t rows = SamplesOfLane(plan, place.module) * RowsOf(plan, place.module);
  // Of all chunks of the stage together, taken to be alike.
  const int64_t kept = ActivationsKeptMax(plan, place.module, place.pp, plan.microbatches);
  const int64_t alive =
      layout.TrainsOf(place.pp, chunk).any() ? (kept + layout.chunks() - 1) / layout.chunks() : 1;
  const PartElements elements = ElementsOf(plan, place, chunk);
  estimate->activations +=
      (rows * (alive * elements.kept + elements.once) + MessageElements(plan, place, chunk)) *
      bytes;
  if (TraitsOf(module.architecture).vocabulary() && layout.IsLast(place.pp, chunk)) {
    const TensorUnits units = TensorUnitsOf(module.architecture, place.width, place.tp);
    estimate->activations +=
        rows * units.vocabulary_blocks.count * module.architecture.block * wide_bytes;
  }
}

// What the rank at a place mirrors for others is left out.
PlaceMemory MemoryOfPlace(const Plan& plan, const Place& place, const StageLoads& loads) {
  PlaceMemory memory;
  int64_t given = 0, taken = 0;  // one part after the other exchanges
  for (int32_t chunk = 0; chunk < plan.modules[static_cast<size_t>(place.module)].chunks();
       ++chunk) {
    const HomeLoad* load = nullptr;
    if (!loads.empty()) {
      load = &loads[static_cast<size_t>(chunk)].of.at({place.width, place.tp});
      given = std::max(given, load->given);
      taken = std::max(taken, load->taken);
    }
    AddPart(plan, place, chunk, load, &memory);
  }
  memory.estimate.gradients += (given + taken) * std::max<int64_t>(4, BytesOf(plan.spec.compute));
  return memory;
}

// Whether it writes what does not train, too.
bool IsOfFirstReplica(const Plan& plan, const Place& place) {
  return place.dp == plan.replicas(place.module).FirstPresent() && place.cp == 0;
}

// Calls add(rank, bytes) for what ranks of a stage mirror. `loads` as LoadsOfStage; own(tp): bytes
// that the rank of a tensor coordinate is the primary home of, where there are none.
template <typename Own, typename Add>
void ForEachMirror(const Plan& plan, int32_t module, int32_t pp, const StageLoads& loads,
                   const Own& own, const Add& add) {
  if (!IsMirrored(plan, module)) return;
  for (const HomeLoads& load : loads) {
    for (const auto& [rank, elements] : load.mirrored)
      add(rank, elements * StateBytes(plan.spec.compute));
  }
  if (!plan.replicas(module).EqualWidths(pp)) return;
  int32_t tp = 0;
  for (const RankList& group : plan.DataGroups(module, pp)) {
    const int64_t bytes = own(tp++);
    for (const RankList& homes : HomesOf(plan, module, group)) {
      for (size_t i = 1; i < homes.size(); ++i) add(homes[i], bytes);
    }
  }
}

MemoryEstimate& operator+=(MemoryEstimate& a, const MemoryEstimate& b) {
  a.parameters += b.parameters;
  a.gradients += b.gradients;
  a.optimizer += b.optimizer;
  a.activations += b.activations;
  a.host.copies += b.host.copies;
  a.host.snapshot += b.host.snapshot;
  return a;
}

void AddHeaders(HostEstimate& host) {
  if (host.copies > 0) host.copies += 2 * kHostHeaderBytes;
}

// Of all ranks, without headers.
void AddModule(const Plan& plan, const ModulePlan& layout, std::vector<MemoryEstimate>* estimates) {
  if (!TraitsOf(plan.module_spec(layout.index).architecture).known()) return;
  const ReplicaTable& replicas = layout.replicas;
  for (Place place{.module = layout.index}; place.pp < layout.pp(); ++place.pp) {
    std::map<std::pair<int32_t, int32_t>, PlaceMemory> known;  // by width and tp
    const StageLoads loads = LoadsOfStage(plan, layout.index, place.pp);
    for (place.dp = 0; place.dp < replicas.replicas(); ++place.dp) {
      if (!replicas.Present(place.dp)) continue;
      place.width = replicas.Width(place.dp, place.pp);
      for (place.tp = 0; place.tp < place.width; ++place.tp) {
        const auto [entry, added] = known.try_emplace({place.width, place.tp});
        if (added) entry->second = MemoryOfPlace(plan, place, loads);
        for (place.cp = 0; place.cp < replicas.cp(); ++place.cp) {
          MemoryEstimate& of_rank = (*estimates)[static_cast<size_t>(plan.RankOf(place).value)];
          of_rank += entry->second.estimate;
          if (IsOfFirstReplica(plan, place)) of_rank.host.snapshot += entry->second.frozen;
        }
        place.cp = 0;
      }
    }
    const int32_t width = replicas.WidestOf(place.pp);
    ForEachMirror(
        plan, layout.index, place.pp, loads,
        [&](int32_t tp) {
          return known.at({width, tp}).estimate.optimizer;
        },
        [&](Rank mirror, int64_t bytes) {
          (*estimates)[static_cast<size_t>(mirror.value)].optimizer += bytes;
        });
  }
}
}  // namespace

int64_t BytesOf(job::Precision precision) {
  switch (precision) {
    case job::Precision::kBf16:
      return 2;
    case job::Precision::kFp32:
      return 4;
    case job::Precision::kFp64:
      return 8;
  }
  return 4;
}

int64_t StateBytes(job::Precision compute) { return 3 * std::max<int64_t>(4, BytesOf(compute)); }

MemoryEstimate EstimateMemory(const Plan& plan, Rank rank) {
  MemoryEstimate estimate;
  for (const Place& place : plan.PlacesOf(rank)) {
    if (!TraitsOf(plan.module_spec(place.module).architecture).known()) continue;
    const StageLoads loads = LoadsOfStage(plan, place.module, place.pp);
    const PlaceMemory memory = MemoryOfPlace(plan, place, loads);
    estimate += memory.estimate;
    if (IsOfFirstReplica(plan, place)) estimate.host.snapshot += memory.frozen;
    const auto own = [&](int32_t tp) {
      Place primary = place;
      primary.tp = tp;
      return MemoryOfPlace(plan, primary, loads).estimate.optimizer;
    };
    ForEachMirror(plan, place.module, place.pp, loads, own, [&](Rank mirror, int64_t bytes) {
      if (mirror == rank) estimate.optimizer += bytes;
    });
  }
  AddHeaders(estimate.host);
  return estimate;
}

std::vector<MemoryEstimate> EstimateMemory(const Plan& plan) {
  std::vector<MemoryEstimate> estimates(static_cast<size_t>(plan.world));
  for (const ModulePlan& layout : plan.modules) AddModule(plan, layout, &estimates);
  for (MemoryEstimate& estimate : estimates) AddHeaders(estimate.host);
  return estimates;
}

bool TakesHostMemory(const Plan& plan) {
  return plan.spec.checkpoint.has_value() || CopiesToHost(plan);
}

}  // namespace phalanx::plan

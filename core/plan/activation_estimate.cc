#include "core/plan/activation_estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/plan/activations.h"
#include "core/plan/cost.h"
#include "core/plan/samples.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using job::Modality;
using job::TraitsOf;

// Samples of one microbatch on one replica of a module, at most; `place`: on its own.
int64_t SamplesOfLane(const Plan& plan, const Place& place, const SampleShape& samples) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const bool is_language = place.module == plan.spec.language;
  if (is_language && !samples.as_dealt) return plan.spec.batch.micro;
  const int64_t lanes = layout.replicas.replicas();
  if (layout.speeds.empty() && !samples.as_dealt)
    return (CountOfMicrobatch(plan, 0) + lanes - 1) / lanes;
  const std::vector<int64_t> dealt = DealtToReplicas(plan, place.module);
  return samples.as_dealt ? dealt[static_cast<size_t>(place.dp)]
                          : *std::max_element(dealt.begin(), dealt.end());
}

// Items of one sample that an encoder reads: at most as many as fit the context, all of its kind.
int64_t ItemsOfSample(const Plan& plan, int32_t module, const SampleShape& samples) {
  const int64_t limit = plan.spec.data.value_or(job::Data{}).items_max;
  const int64_t context = plan.module_spec(plan.spec.language).architecture.context;
  const int64_t positions = plan.spec.PositionsOfItem(module);
  const int64_t fit = positions > 0 ? context / positions : 1;
  const int64_t most = std::max<int64_t>(1, std::min(limit, fit));
  return std::min<int64_t>(samples.items.value_or(most), most);
}

// Bytes of the pixels or sounds that the first part of an encoder has on its GPU, of two
// microbatches, in the compute type.
int64_t BytesOfItems(const Plan& plan, const Place& place, const SampleShape& samples) {
  constexpr int64_t kMicrobatches = 2;
  const job::Architecture& a = plan.module_spec(place.module).architecture;
  if (!TraitsOf(a).encoder() || plan.spec.resources.device != job::DeviceKind::kGpu) return 0;
  const int64_t values =
      TraitsOf(a).images() ? 3 * a.image_size * a.image_size : a.mel_bins * a.frames;
  return kMicrobatches * SamplesOfLane(plan, place, samples) *
         ItemsOfSample(plan, place.module, samples) * values * BytesOf(plan.spec.compute);
}

// Token rows that a module makes of one sample, at most.
int64_t RowsOfSample(const Plan& plan, int32_t module, const SampleShape& samples) {
  const job::Architecture& architecture = plan.module_spec(module).architecture;
  const int64_t item = job::RowsOfItem(architecture);
  return item > 0 ? ItemsOfSample(plan, module, samples) * item : architecture.context;
}

int64_t MicrobatchesOf(const Plan& plan, const SampleShape& samples) {
  return std::min(plan.microbatches, samples.microbatches.value_or(plan.microbatches));
}

// Of so many rows of a module, those that are held to labels.
int64_t LabelledRows(const Plan& plan, int32_t module, int64_t rows, const SampleShape& samples) {
  if (module != plan.spec.language) return rows;
  const double labelled = std::ceil(static_cast<double>(rows) * samples.labelled_share);
  return std::clamp<int64_t>(static_cast<int64_t>(labelled), std::min<int64_t>(rows, 1), rows);
}

// Of elements of rows between products, those that each rank has: under sequence parallelism its
// part.
int64_t HereOf(const job::Module& module, const Place& place, int64_t elements) {
  return module.parallel.sequence ? (elements + place.width - 1) / place.width : elements;
}

// Elements of the messages that a part keeps: those that wait, and one that leaves of each kind.
int64_t MessageElements(const Plan& plan, const Place& place, int32_t chunk,
                        const SampleShape& samples) {
  const PartId part = {place.module, place.pp, chunk};
  const auto of = [&](const Link& link) {
    const int64_t elements = SamplesOfLane(plan, place, samples) *
                             RowsOfSample(plan, link.from.module, samples) *
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
    const int64_t kept = MessagesKeptMax(plan, link, MicrobatchesOf(plan, samples)).forward;
    elements += of(link) * (kept + (trains(link.from) ? 1 : 0));
  }
  for (int32_t index : plan.LinksOutOf(part)) {
    const Link& link = plan.links[static_cast<size_t>(index)];
    elements +=
        of(link) * (MessagesKeptMax(plan, link, MicrobatchesOf(plan, samples)).backward + 1);
  }
  return elements;
}

// Elements of one row.
struct KeptElements {
  int64_t forward = 0;   // that one layer keeps until its backward pass
  int64_t backward = 0;  // that the backward pass reads
  int64_t waiting = 0;   // that waits for the weight pass, where it is one of its own
  KeptElements operator*(int64_t rows) const {
    return {forward * rows, backward * rows, waiting * rows};
  }
  KeptElements operator-(const KeptElements& other) const {
    return {forward - other.forward, backward - other.backward, waiting - other.waiting};
  }
};
// Whether its KV heads serve as many query heads each. Else attention takes keys and values that
// are repeated for each of these (worker/model/attention.h).
bool ServeEvenly(const job::Architecture& a, const TensorUnits& units) {
  const int64_t kv_heads = units.kv_heads.count;
  if (kv_heads == 0) return true;
  const int64_t group = a.heads / KvHeads(a), each = units.query_heads.count / kv_heads;
  if (each * kv_heads != units.query_heads.count) return false;
  for (int64_t head = 1; head < kv_heads; ++head) {
    if ((units.kv_heads.first + head) * group != units.query_heads.first + head * each)
      return false;
  }
  return true;
}

KeptElements KeptOf(const job::Module& module, const Place& place, Rounded rounded) {
  const job::Architecture& a = module.architecture;
  const TensorUnits units = TensorUnitsOf(a, place.width, place.tp);
  const int64_t q = units.query_heads.count * HeadSize(a), kv = units.kv_heads.count * HeadSize(a);
  const int64_t mlp = units.mlp_blocks.count * a.block;
  const int64_t in = TraitsOf(a).gated() ? 2 * mlp : mlp;  // gate and up
  // Of a row between products, which is here or, under sequence parallelism, may be elsewhere.
  const int64_t hidden = HereOf(module, place, a.hidden_size);
  const int64_t attention = 2 * q + 2 * kv + (ServeEvenly(a, units) ? 0 : 2 * q);
  KeptElements kept;
  // The two inputs of products are whole when their weights' gradients are due.
  kept.backward = 2 * hidden + 2 * a.hidden_size + attention + in + mlp;
  // They, and the gradients that meet them: each product's operands.
  kept.waiting = 4 * a.hidden_size + 2 * q + 2 * kv + in + mlp;
  switch (module.recompute) {
    case job::Recompute::kFull:
      kept.forward = hidden;
      break;
    case job::Recompute::kSelective:
      kept.forward = 2 * hidden + attention + in;
      break;
    case job::Recompute::kNone:
      kept.forward = 4 * hidden + attention + in + mlp;
      if (module.frozen) kept.forward = kept.backward = 2 * hidden + attention + in;
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

// Of these, what is of rows behind attention in a layer that trains.
KeptElements KeptBehindAttention(const job::Module& module, const Place& place, Rounded rounded) {
  const job::Architecture& a = module.architecture;
  const TensorUnits units = TensorUnitsOf(a, place.width, place.tp);
  const int64_t q = units.query_heads.count * HeadSize(a), mlp = units.mlp_blocks.count * a.block;
  const int64_t in = TraitsOf(a).gated() ? 2 * mlp : mlp;
  const int64_t hidden = HereOf(module, place, a.hidden_size);
  KeptElements kept = {.backward = hidden + a.hidden_size + in + mlp,
                       .waiting = 3 * a.hidden_size + q + in + mlp};
  if (module.recompute == job::Recompute::kSelective) kept.forward = hidden + in;
  if (module.recompute == job::Recompute::kNone) kept.forward = 2 * hidden + in + mlp;
  if (rounded != Rounded::kInFp8) return kept;
  kept.waiting /= 2;
  if (module.recompute != job::Recompute::kNone) return kept;
  kept.forward += (q - mlp - (module.parallel.sequence ? 0 : hidden)) / 2;
  kept.backward += (q - mlp - a.hidden_size) / 2;
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

// Elements that one part keeps of one microbatch, and once for all of them.
struct PartElements {
  int64_t kept = 0, once = 0;
};

// Of `layers` layers, at least one, that have a backward pass and are like `layer`, but for the
// last one. `one`: it is one pass.
PartElements ElementsOfLayers(const KeptElements& layer, const KeptElements& last, int64_t layers,
                              bool delays, bool one) {
  const auto above = [](int64_t elements, int64_t kept) {
    return std::max<int64_t>(0, elements - kept);
  };
  const auto kept = [&](const KeptElements& of) {
    // Where weight passes are delayed, a microbatch may keep more before its input pass than
    // behind.
    return delays ? std::max(of.forward, of.waiting) : of.forward;
  };
  const KeptElements& first = layers > 1 ? layer : last;
  PartElements elements = {.kept = (layers - 1) * kept(layer) + kept(last),
                           .once = above(first.backward, kept(first))};
  if (delays || one) return elements;
  // While the input pass is at its last layer, all others wait for the weight pass; at its first
  // layer, none does.
  elements.once = above(std::max(first.backward, first.waiting), first.forward);
  if (layers > 1) {
    elements.once +=
        (layers - 2) * above(layer.waiting, layer.forward) + above(last.waiting, last.forward);
  }
  return elements;
}

// What one part makes of a microbatch.
struct PartRows {
  int64_t all = 0;
  int64_t labelled = 0;  // of the language module's, held to labels
};

PartElements ElementsOf(const Plan& plan, const Place& place, int32_t chunk, const PartRows& rows) {
  const job::Module& module = plan.module_spec(place.module);
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const bool layers_back = layout.TrainsOf(place.pp, chunk).inputs || !module.frozen;
  const bool is_last = layout.IsLast(place.pp, chunk);
  const Rounded rounded = RoundedOf(plan, module);
  const KeptElements layer = KeptOf(module, place, rounded) * rows.all;
  PartElements elements;
  if (layers_back) {
    const bool one = module.frozen || BackwardIsOne(plan, {place.module, place.pp, chunk});
    const bool labelled_leave =
        is_last && !module.frozen && LabelledAloneLeave(plan.spec, place.module);
    KeptElements last = layer;
    if (labelled_leave)
      last = last - KeptBehindAttention(module, place, rounded) * (rows.all - rows.labelled);
    elements = ElementsOfLayers(layer, last, layout.layers(place.pp, chunk).count,
                                !module.frozen && DelaysWeights(plan), one);
    if (layout.IsFirst(place.pp, chunk))
      elements.kept += rows.all * KeptBefore(module.architecture);
    if (labelled_leave) {
      const bool at_once = module.recompute != job::Recompute::kNone && !DelaysWeights(plan);
      const int64_t queries =
          TensorUnitsOf(module.architecture, place.width, place.tp).query_heads.count *
          HeadSize(module.architecture);
      // Rounded, it is among what the layer keeps.
      const bool rounded_alone =
          rounded == Rounded::kInFp8 && module.recompute == job::Recompute::kNone;
      if (!rounded_alone) (at_once ? elements.once : elements.kept) += rows.labelled * queries;
    }
  } else {
    elements.once = layer.backward;
  }
  if (is_last) elements.kept += rows.all * KeptByProjectors(plan, place, layers_back);
  return elements;
}

// Elements of one microbatch that the head keeps, in the last part of a module with a vocabulary.
int64_t HeadElements(const Plan& plan, const Place& place, bool layers_back, const PartRows& rows) {
  const job::Module& module = plan.module_spec(place.module);
  const int64_t vocabulary =
      TensorUnitsOf(module.architecture, place.width, place.tp).vocabulary_blocks.count *
      module.architecture.block;
  if (!layers_back) return rows.labelled * vocabulary;
  const int64_t normed = LabelledAloneLeave(plan.spec, place.module) ? rows.labelled : rows.all;
  return rows.labelled * vocabulary +
         (normed + (module.frozen ? 0 : rows.labelled)) * module.architecture.hidden_size;
}

// Microbatches of which the head of a module in one chunk keeps that at once, where its part keeps
// `alive` and the head does not wait for weight passes.
int64_t HeadsKept(const Plan& plan, const ModulePlan& layout, int64_t alive) {
  return std::min<int64_t>(alive, plan.stages - layout.first_stage - layout.pp() + 1);
}

}  // namespace

std::vector<int64_t> DealtToReplicas(const Plan& plan, int32_t module) {
  // The language module's are dealt by the step, and each run is cut into microbatches.
  const bool is_language = module == plan.spec.language;
  const int64_t all = is_language ? plan.spec.batch.global : CountOfMicrobatch(plan, 0);
  const std::vector<int64_t> starts = LaneStarts(plan.modules[static_cast<size_t>(module)], all);
  std::vector<int64_t> dealt;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t run = starts[i + 1] - starts[i];
    dealt.push_back(is_language ? EvenSplit(run, plan.microbatches, 0).count : run);
  }
  return dealt;
}

Rounded RoundedOf(const Plan& plan, const job::Module& module) {
  if (plan.spec.linear != job::LinearFormat::kFp8 || !TraitsOf(module.architecture).decoder())
    return Rounded::kNothing;
  return plan.spec.resources.device == job::DeviceKind::kGpu ? Rounded::kInFp8
                                                             : Rounded::kInComputeType;
}

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

PartActivations ActivationsOfPart(const Plan& plan, const Place& place, int32_t chunk,
                                  const SampleShape& samples) {
  const job::Module& module = plan.module_spec(place.module);
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const int64_t bytes = BytesOf(plan.spec.compute);
  PartRows rows = {.all = SamplesOfLane(plan, place, samples) *
                          RowsOfSample(plan, place.module, samples)};
  rows.labelled = LabelledRows(plan, place.module, rows.all, samples);
  const PartElements part = ElementsOf(plan, place, chunk, rows);
  PartActivations activations = {.kept = part.kept * bytes,
                                 .head_waits = !module.frozen && DelaysWeights(plan),
                                 .once = part.once * bytes,
                                 .messages = MessageElements(plan, place, chunk, samples) * bytes};
  if (layout.IsFirst(place.pp, chunk)) activations.items = BytesOfItems(plan, place, samples);
  if (TraitsOf(module.architecture).vocabulary() && layout.IsLast(place.pp, chunk)) {
    const bool layers_back = layout.TrainsOf(place.pp, chunk).inputs || !module.frozen;
    activations.head = HeadElements(plan, place, layers_back, rows) * bytes;
  }
  return activations;
}

std::vector<int64_t> UnitCountsOf(const Plan& plan, const Place& place) {
  const job::Architecture& a = plan.module_spec(place.module).architecture;
  const TensorUnits units = TensorUnitsOf(a, place.width, place.tp);
  return {units.query_heads.count,       units.kv_heads.count,
          units.mlp_blocks.count,        units.vocabulary_blocks.count,
          ServeEvenly(a, units) ? 1 : 0, KeptByProjectors(plan, place, /*layers_back=*/true)};
}

int64_t ActivationBytes(const Plan& plan, const Place& place, const SampleShape& samples) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const int64_t microbatches = MicrobatchesOf(plan, samples);
  std::vector<int64_t> kept;  // of chunks that have a backward pass
  int64_t bytes = 0;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    const PartActivations part = ActivationsOfPart(plan, place, chunk, samples);
    bytes += part.once + part.messages + part.items;
    if (!layout.TrainsOf(place.pp, chunk).any()) {
      bytes += part.kept + part.head;
    } else if (layout.chunks() > 1 || part.head_waits) {
      kept.push_back(part.kept + part.head);
    } else {
      kept.push_back(part.kept);
      const int64_t alive = ActivationsKeptMax(plan, place.module, place.pp, microbatches);
      bytes += HeadsKept(plan, layout, alive) * part.head;
    }
  }
  return bytes + KeptBytesMax(plan, place.module, place.pp, microbatches, kept);
}

}  // namespace phalanx::plan

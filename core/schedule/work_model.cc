#include "core/schedule/work_model.h"

#include <algorithm>
#include <cmath>

#include "core/job/graph.h"
#include "core/plan/cost.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/units.h"
#include "core/schedule/overlap.h"

namespace phalanx::schedule {
namespace {

using job::TraitsOf;

// What the tensor ranks of a group exchange to have all of `bytes`, summed.
double AllReduceSeconds(const DeviceProfile& profile, double bytes, int32_t ranks) {
  if (ranks < 2) return 0;
  const double others = static_cast<double>(ranks - 1) / ranks;
  return 2 * LinkSeconds(profile.collective, bytes * others);
}

bool FeedsTrained(const job::JobSpec& spec, int32_t module) {
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const auto source = static_cast<int32_t>(i);
    if (source == module || job::ReachedFrom(spec, source).count(module) == 0) continue;
    if (!spec.modules[i].frozen) return true;
    for (const job::Edge& edge : spec.edges) {
      const bool on_the_way =
          edge.to == module || job::ReachedFrom(spec, edge.to).count(module) > 0;
      if (edge.from == source && on_the_way && edge.projector && !edge.projector->frozen)
        return true;
    }
  }
  return false;
}

}  // namespace

PassSeconds& PassSeconds::operator+=(const PassSeconds& other) {
  forward += other.forward;
  backward_input += other.backward_input;
  backward_weight += other.backward_weight;
  recompute += other.recompute;
  tensor += other.tensor;
  written += other.written;
  return *this;
}

PassSeconds PassSeconds::operator*(double factor) const {
  return {forward * factor,   backward_input * factor, backward_weight * factor,
          recompute * factor, tensor * factor,         written * factor};
}

// Of one tensor rank, the largest share of units of each kind.
struct WorkModel::Sizes {
  double hidden = 0, hidden_here = 0, queries = 0, keys = 0, mlp = 0, in = 0;

  Sizes(const job::Architecture& a, const PartShape& part) {
    const plan::TensorUnits units = plan::TensorUnitsOf(a, part.width, 0);
    const auto head = static_cast<double>(plan::HeadSize(a));
    hidden = static_cast<double>(a.hidden_size);
    hidden_here = part.sequence ? hidden / part.width : hidden;
    queries = static_cast<double>(units.query_heads.count) * head;
    keys = static_cast<double>(units.kv_heads.count) * head;
    mlp = static_cast<double>(std::min(units.mlp_blocks.count * a.block, a.mlp_size));
    in = TraitsOf(a).gated() ? 2 * mlp : mlp;
  }
};

double SamplesOfMicrobatch(const job::JobSpec& spec, int32_t module, int32_t language_replicas,
                           int64_t microbatches) {
  const int64_t global = spec.batch.global;
  const int64_t fullest = (global + language_replicas - 1) / language_replicas;
  const int64_t samples = module == spec.language ? fullest * language_replicas : global;
  return static_cast<double>(samples) / static_cast<double>(microbatches);
}

WorkModel::WorkModel(const job::JobSpec& spec, const DeviceProfile& profile, int32_t items)
    : spec_(spec),
      profile_(profile),
      items_(items),
      bytes_(static_cast<double>(plan::BytesOf(spec.compute))) {
  for (size_t i = 0; i < spec.modules.size(); ++i)
    trained_before_.push_back(FeedsTrained(spec, static_cast<int32_t>(i)));
}

const job::Architecture& WorkModel::ArchitectureOf(int32_t module) const {
  return spec_.modules[static_cast<size_t>(module)].architecture;
}

double WorkModel::RowsOfLane(int32_t module, double samples, int32_t lanes) const {
  const job::Architecture& a = ArchitectureOf(module);
  const int64_t per_item = job::RowsOfItem(a);
  const double rows =
      per_item > 0 ? static_cast<double>(per_item * items_) : static_cast<double>(a.context);
  // The language module's replicas have as many samples on average, the lanes of others whole ones.
  if (module == spec_.language) return samples / lanes * rows;
  return std::ceil(std::ceil(samples) / lanes) * rows;
}

bool WorkModel::InFp8(int32_t module) const {
  return spec_.linear == job::LinearFormat::kFp8 && TraitsOf(ArchitectureOf(module)).decoder();
}

double WorkModel::LabelledRows(const PartShape& part) const {
  return part.module == spec_.language ? part.rows * spec_.batch.labelled_share : part.rows;
}

double WorkModel::RowsOn(const PartShape& part) const {
  return plan::LabelledAloneLeave(spec_, part.module) ? LabelledRows(part) : part.rows;
}

PassSeconds WorkModel::Products(double rows, double inputs, double outputs,
                                std::optional<Rounded> rounded) const {
  const auto seconds = [&](ProductPass pass) {
    return rounded.has_value() ? Fp8ProductSeconds(profile_, pass, rows, inputs, outputs)
                               : ProductSeconds(profile_, pass, rows, inputs, outputs);
  };
  PassSeconds products = {.forward = seconds(ProductPass::kForward),
                          .backward_input = seconds(ProductPass::kInputGradient),
                          .backward_weight = seconds(ProductPass::kWeightGradient)};
  products.written = products.backward_weight - seconds(ProductPass::kWrittenWeightGradient);
  if (rounded.has_value()) {
    products.forward += Fp8CastSeconds(profile_, rows * inputs, rounded->input);
    products.backward_input += Fp8CastSeconds(profile_, rows * outputs, rounded->gradient);
  }
  return products;
}

double WorkModel::RoundingSeconds(int32_t module, int32_t layers, int32_t width) const {
  if (!InFp8(module)) return 0;
  const Sizes s(ArchitectureOf(module), {.module = module, .width = width});
  const double matrices[] = {s.hidden * (s.queries + 2 * s.keys), s.queries * s.hidden,
                             s.hidden * s.in, s.mlp * s.hidden};
  double seconds = 0;
  for (const double elements : matrices)
    seconds += Fp8CastSeconds(profile_, elements, /*largest_known=*/false);
  return layers * seconds;
}

WorkModel::LayerSeconds WorkModel::LayerOf(const PartShape& part, double rows_on) const {
  const job::Architecture& a = ArchitectureOf(part.module);
  const Sizes s(a, part);
  // Norms, activations and what packs heads find largest magnitudes, attention does not. Of slices
  // that are gathered nobody knows them.
  const bool whole = !part.sequence || part.width == 1;
  const auto rounded = [&](bool input, bool gradient) {
    return InFp8(part.module) ? std::optional(Rounded{input, gradient}) : std::nullopt;
  };
  LayerSeconds layer;
  PassSeconds& pass = layer.pass;
  pass += Products(part.rows, s.hidden, s.queries + 2 * s.keys, rounded(whole, true));
  pass += Products(rows_on, s.queries, s.hidden, rounded(false, whole));
  pass += Products(rows_on, s.hidden, s.in, rounded(whole, true));
  const PassSeconds down = Products(rows_on, s.mlp, s.hidden, rounded(true, whole));
  pass += down;
  const int64_t item_rows = job::RowsOfItem(a);
  const auto head = static_cast<double>(plan::HeadSize(a));
  const AttentionShape shape = {
      .rows = part.rows,
      .length = static_cast<double>(item_rows > 0 ? item_rows : a.context),
      .heads = s.queries / head,
      .head_size = head,
      .causal = TraitsOf(a).decoder()};
  // Elements that are read or written. Forward: a norm; of the rows that go on the residual's sum
  // with its norm, and the sum behind the layer; rotation of queries and keys, which is turned back
  // where their gradients are packed, with attention's; the activation. Backward: two norms with
  // the residual's gradient, the activation.
  const double first_norm = 2 * s.hidden_here * part.rows;
  const double sums = 7 * s.hidden_here * rows_on;
  const double norms_backward = 4 * s.hidden_here * (part.rows + rows_on);
  const double rotation =
      TraitsOf(a).positions == job::Positions::kRotary ? 2 * (s.queries + s.keys) * part.rows : 0;
  // Rows that go on are taken from attention's output and the residual, and put back among zeros.
  const double taken = rows_on < part.rows ? (s.queries + s.hidden_here) * rows_on : 0;
  const double put = rows_on < part.rows ? (s.queries + s.hidden_here) * part.rows : 0;
  const int choice = taken > 0 ? 2 : 0;  // launches
  const auto memory = [&](double elements, int launches) {
    return MemorySeconds(profile_, elements * bytes_, launches);
  };
  const double attention = AttentionSeconds(profile_, shape, false);
  const double activation = (s.in + s.mlp) * rows_on;
  const double between = attention + memory(first_norm + sums + rotation + activation + 2 * taken,
                                            (rotation > 0 ? 5 : 4) + choice);
  const double exchange_on = AllReduceSeconds(profile_, rows_on * s.hidden * bytes_, part.width);
  const double exchange =
      AllReduceSeconds(profile_, part.rows * s.hidden * bytes_, part.width) + exchange_on;
  pass.forward += between + exchange;
  pass.backward_input +=
      AttentionSeconds(profile_, shape, true) +
      memory(norms_backward + (2 * s.in + s.mlp) * rows_on + taken + put, 3 + choice) + exchange;
  pass.tensor = 2 * exchange;
  // The outputs of products and of attention are there, the rotated ones and the residual's sum
  // among them. What a gated activation gives comes from its backward pass, which reads the same.
  const bool gated = TraitsOf(a).gated();
  const double active = gated ? s.mlp * rows_on : activation;
  layer.selective = memory(first_norm + 2 * s.hidden_here * rows_on + active + taken,
                           (gated ? 2 : 3) + choice / 2);
  // What is behind the activation is not computed again: the last product, its sum over tensor
  // ranks (of slices the first half of an exchange) and the residual's.
  layer.full = pass.forward - down.forward - (part.sequence ? exchange_on / 2 : exchange_on) -
               memory(3 * s.hidden_here * rows_on, 1);
  if (gated) layer.full -= memory(s.in * rows_on, 1);
  if (!InFp8(part.module)) return layer;
  // A product's input that is computed again is rounded twice, in one form each time, which moves
  // three quarters of what both forms at once do: by a half more than has been counted. Under full
  // recomputation what runs again is counted with both, where the first time has one.
  const auto cast = [&](double elements) { return Fp8CastSeconds(profile_, elements, true); };
  // Its largest magnitude is looked for again, too.
  const auto again = [&](double elements, bool known) {
    return Fp8CastSeconds(profile_, elements, known) - cast(elements) / 2;
  };
  const double normed = part.rows * s.hidden, normed_on = rows_on * s.hidden;
  const double attended = rows_on * s.queries, of_active = again(rows_on * s.mlp, true);
  layer.selective +=
      again(normed, whole) + again(attended, false) + again(normed_on, whole) + of_active;
  layer.full += of_active - (cast(normed) + cast(attended) + cast(normed_on)) / 4;
  return layer;
}

const WorkModel::LayerSeconds& WorkModel::OfLayer(const PartShape& part, double rows_on) {
  const auto [entry, is_new] =
      layers_.try_emplace({part.module, part.width, part.sequence, part.rows, rows_on});
  if (is_new) entry->second = LayerOf(part, rows_on);
  return entry->second;
}

PassSeconds WorkModel::OfEmbedding(const PartShape& part) const {
  const job::Architecture& a = ArchitectureOf(part.module);
  const auto hidden = static_cast<double>(a.hidden_size);
  PassSeconds pass;
  switch (TraitsOf(a).modality) {
    case job::Modality::kText:  // rows are read and written; their gradients added to fp32
      pass.forward = MemorySeconds(profile_, 2 * part.rows * hidden * bytes_, 1);
      pass.backward_weight = EmbeddingSeconds(profile_, part.rows * hidden * (bytes_ + 8));
      break;
    case job::Modality::kImage:
      pass += Products(part.rows, 3 * static_cast<double>(a.patch_size * a.patch_size), hidden);
      pass.backward_input = 0;  // nobody asks for the gradient of a pixel
      break;
    case job::Modality::kSound:
      pass += Products(2 * part.rows, 3 * static_cast<double>(a.mel_bins), hidden);
      pass.backward_input = 0;
      pass += Products(part.rows, 3 * hidden, hidden);
      break;
    case job::Modality::kNone:
      break;
  }
  return pass * (1.0 / part.width);
}

PassSeconds WorkModel::OfHead(const PartShape& part) const {
  const job::Architecture& a = ArchitectureOf(part.module);
  const auto hidden = static_cast<double>(a.hidden_size);
  const bool feeds = std::any_of(spec_.edges.begin(), spec_.edges.end(),
                                 [&](const auto& edge) { return edge.from == part.module; });
  PassSeconds pass;
  switch (TraitsOf(a).head) {
    case job::HeadKind::kVocabulary: {
      if (part.module != spec_.language) break;
      const auto columns = static_cast<double>(
          plan::TensorUnitsOf(a, part.width, 0).vocabulary_blocks.count * a.block);
      const double labelled = LabelledRows(part);
      pass = Products(labelled, hidden, columns);
      // Logits are read, and their gradient is written in their place; where tensor ranks have
      // columns of them, a pass before that reads them for the sums of all.
      pass.forward += LossSeconds(profile_, (part.width > 1 ? 3 : 2) * labelled * columns * bytes_);
      break;
    }
    case job::HeadKind::kPrediction:
      if (!feeds) pass = Products(part.rows, hidden, hidden) * (1.0 / part.width);
      break;
    case job::HeadKind::kNone:
      break;
  }
  return pass;
}

PassSeconds WorkModel::OfProjectors(const PartShape& part) const {
  const auto m = static_cast<size_t>(part.module);
  const bool layers_back = trained_before_[m] || !spec_.modules[m].frozen;
  PassSeconds all;
  for (const job::Edge& edge : spec_.edges) {
    if (edge.from != part.module || !edge.projector.has_value()) continue;
    const job::Architecture& from = spec_.modules[m].architecture;
    const int64_t blocks = plan::BlockCount(edge.projector->hidden_size, from.block);
    const auto inner =
        static_cast<double>(plan::EvenSplit(blocks, part.width, 0).count * from.block);
    PassSeconds first = Products(part.rows, static_cast<double>(from.hidden_size), inner);
    PassSeconds second =
        Products(part.rows, inner, static_cast<double>(ArchitectureOf(edge.to).hidden_size));
    if (!layers_back) first.backward_input = 0;
    if (!layers_back && edge.projector->frozen) second.backward_input = 0;
    if (edge.projector->frozen) {
      first.backward_weight = second.backward_weight = 0;
      first.written = second.written = 0;
    }
    all += first;
    all += second;
  }
  return all;
}

PassSeconds WorkModel::OfPart(const PartShape& part) {
  if (part.rows <= 0) return {};
  const auto m = static_cast<size_t>(part.module);
  const bool frozen = spec_.modules[m].frozen;
  // Those of which all rows go on, and the one of which the labelled ones may.
  const int32_t last = part.last && part.layers > 0 ? 1 : 0;
  PassSeconds pass;
  double selective = 0, full = 0;
  const auto add = [&](const LayerSeconds& layer, int32_t layers) {
    pass += layer.pass * layers;
    selective += layer.selective * layers;
    full += layer.full * layers;
  };
  add(OfLayer(part, part.rows), part.layers - last);
  if (last > 0) add(OfLayer(part, RowsOn(part)), last);
  if (part.first) pass += OfEmbedding(part);
  if (part.last) pass += OfHead(part);
  if (frozen) pass.backward_weight = pass.written = 0;
  if (frozen && !trained_before_[m]) {
    pass.backward_input = 0;
    pass.tensor /= 2;
  } else {
    pass.recompute = part.recompute == job::Recompute::kFull        ? full
                     : part.recompute == job::Recompute::kSelective ? selective
                                                                    : 0;
    pass.backward_input += pass.recompute;
  }
  if (part.last) pass += OfProjectors(part);
  pass.backward_weight -= pass.written / static_cast<double>(part.microbatches);
  pass.written = 0;
  return pass;
}

PassSeconds WorkModel::OfModule(PartShape part) {
  part.layers = ArchitectureOf(part.module).layers;
  part.first = part.last = true;
  return OfPart(part);
}

}  // namespace phalanx::schedule

#include "core/plan/parameters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using Init = LogicalTensor::Init;

constexpr double kInitStd = 0.02;
constexpr int32_t kNoTensor = -1;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Behind a product whose result is summed over the tensor ranks, which cut its columns.
bool IsRowParallel(MatrixRole role) {
  return role == MatrixRole::kO || role == MatrixRole::kDown || role == MatrixRole::kProjectorDown;
}

// Collects the matrices of one pipeline part in the order in which backward finishes with them.
class PartBuilder {
 public:
  PartBuilder(const Plan& plan, const Place& place, int32_t chunk)
      : plan_(plan),
        place_(place),
        chunk_(chunk),
        module_(plan.module_spec(place.module)),
        architecture_(module_.architecture),
        traits_(job::TraitsOf(architecture_)),
        layout_(plan.modules[static_cast<size_t>(place.module)]),
        units_(TensorUnitsOf(architecture_, place.width, place.tp)) {}

  StageParameters Build() && {
    if (!traits_.known() || chunk_ >= layout_.chunks()) return {};
    if (layout_.IsLast(place_.pp, chunk_)) {
      AddProjectors();
      AddHead();
      if (!traits_.names.final_norm.empty())
        AddNorm(MatrixRole::kFinalNorm, MatrixRole::kFinalNormBias, traits_.names.final_norm);
    }
    const LayerRange layers = layout_.layers(place_.pp, chunk_);
    for (int32_t layer = layers.first + layers.count; layer-- > layers.first;) AddLayer(layer);
    if (layout_.IsFirst(place_.pp, chunk_)) AddInput();
    const ReplicaTable& replicas = plan_.replicas(place_.module);
    result_.replicas = replicas.present_replicas() * replicas.cp();
    Store();
    return std::move(result_);
  }

 private:
  // ---- Logical tensors and matrices ----

  int32_t Logical(std::string name, int64_t rows, int64_t cols, Init init, double std = 0.0) {
    result_.logical.push_back({std::move(name), rows, cols, init, std, /*decay=*/cols > 1});
    return static_cast<int32_t>(result_.logical.size()) - 1;
  }
  int32_t Weight(std::string name, int64_t rows, int64_t cols, double std = kInitStd) {
    return Logical(std::move(name), rows, cols, Init::kNormal, std);
  }
  int32_t Zeros(std::string name, int64_t rows) {
    return Logical(std::move(name), rows, 1, Init::kZero);
  }
  int32_t Ones(std::string name, int64_t rows) {
    return Logical(std::move(name), rows, 1, Init::kOne);
  }

  // `whole_rows`: of all tensor ranks together, each unit counted once.
  LocalMatrix& Matrix(MatrixRole role, int64_t rows, int64_t whole_rows, int64_t cols,
                      int32_t layer, int32_t edge) {
    LocalMatrix matrix;
    matrix.role = role;
    matrix.layer = layer;
    matrix.edge = edge;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.transposed = IsRowParallel(role);
    matrix.trains =
        edge < 0 ? !module_.frozen : !plan_.spec.edges[static_cast<size_t>(edge)].projector->frozen;
    const int64_t healthy_width = module_.parallel.tp;
    const int64_t healthy = RoundUp(whole_rows * cols / healthy_width, kMatrixAlignment);
    collected_.push_back({std::move(matrix), healthy});
    return collected_.back().matrix;
  }

  static void AddPiece(LocalMatrix& matrix, Piece piece) {
    if (piece.rows > 0) matrix.pieces.push_back(piece);
  }

  // Under sequence parallelism what works on the rows of the layers works on a slice of them.
  Holding HoldingOfReplicated(int32_t layer) const {
    if (place_.width == 1) return Holding::kExclusive;
    return layer >= 0 && module_.parallel.sequence ? Holding::kPartial : Holding::kDuplicate;
  }

  // The whole tensor, on every tensor rank.
  void AddReplicated(MatrixRole role, int32_t logical, int32_t layer = -1, int32_t edge = -1) {
    const LogicalTensor& tensor = result_.logical[static_cast<size_t>(logical)];
    const int64_t whole_rows = tensor.rows * module_.parallel.tp;
    LocalMatrix& matrix = Matrix(role, tensor.rows, whole_rows, tensor.cols, layer, edge);
    AddPiece(matrix, {.logical = logical,
                      .rows = tensor.rows,
                      .holding = HoldingOfReplicated(layer),
                      .holders = place_.width,
                      .primary = place_.tp == 0});
  }

  // This rank's run of units, each `unit_rows` rows of `logical`: of a row-parallel matrix columns.
  // The last unit may be short.
  void AddUnits(MatrixRole role, int32_t logical, UnitRange units, int64_t unit_rows, int32_t layer,
                int32_t edge = -1, Holding holding = Holding::kExclusive, bool primary = true) {
    const LogicalTensor& tensor = result_.logical[static_cast<size_t>(logical)];
    int64_t rows = tensor.rows, cols = tensor.cols;
    if (IsRowParallel(role)) std::swap(rows, cols);
    const int64_t first = units.first * unit_rows;
    LocalMatrix& matrix =
        Matrix(role, units.count * unit_rows, RoundUp(rows, unit_rows), cols, layer, edge);
    AddPiece(matrix, {.logical = logical,
                      .logical_row = first,
                      .rows = std::min(rows, units.end() * unit_rows) - first,
                      .holding = holding,
                      .primary = primary});
  }

  // ---- Attention and MLP, common to the families ----

  // Rows of this rank's KV heads, cut where the set of holders changes.
  void AddKvPieces(LocalMatrix& matrix, int32_t logical, int64_t local_row) {
    if (logical == kNoTensor) return;
    const int64_t head_size = HeadSize(architecture_);
    for (int64_t head = units_.kv_heads.first; head < units_.kv_heads.end();) {
      const UnitRange holders = HoldersOfKvHead(architecture_, place_.width, head);
      int64_t end = head + 1;
      while (end < units_.kv_heads.end() &&
             HoldersOfKvHead(architecture_, place_.width, end) == holders) {
        ++end;
      }
      AddPiece(matrix, {.logical = logical,
                        .logical_row = head * head_size,
                        .local_row = local_row + (head - units_.kv_heads.first) * head_size,
                        .rows = (end - head) * head_size,
                        .holding = holders.count == 1 ? Holding::kExclusive : Holding::kPartial,
                        .holders = static_cast<int32_t>(holders.count),
                        .primary = holders.first == place_.tp});
      head = end;
    }
  }

  // Query, key and value rows of one matrix; `cols` 1 for a bias. Rows of kNoTensor are padding.
  void AddQkv(MatrixRole role, const std::array<int32_t, 3>& logical, int64_t cols, int32_t layer) {
    const int64_t head_size = HeadSize(architecture_);
    const int64_t q_rows = units_.query_heads.count * head_size;
    const int64_t kv_rows = units_.kv_heads.count * head_size;
    const int64_t whole_rows = (architecture_.heads + 2 * KvHeads(architecture_)) * head_size;
    LocalMatrix& matrix = Matrix(role, q_rows + 2 * kv_rows, whole_rows, cols, layer, -1);
    AddPiece(matrix, {.logical = logical[0],
                      .logical_row = units_.query_heads.first * head_size,
                      .rows = q_rows});
    AddKvPieces(matrix, logical[1], q_rows);
    AddKvPieces(matrix, logical[2], q_rows + kv_rows);
  }

  // Gate and up rows, interleaved block by block.
  void AddGateUp(int32_t gate, int32_t up, int32_t layer) {
    const int64_t block = architecture_.block;
    const UnitRange blocks = units_.mlp_blocks;
    LocalMatrix& matrix =
        Matrix(MatrixRole::kGateUp, 2 * block * blocks.count,
               2 * RoundUp(architecture_.mlp_size, block), architecture_.hidden_size, layer, -1);
    for (int64_t i = 0; i < blocks.count; ++i) {
      Piece piece{
          .logical = gate, .logical_row = (blocks.first + i) * block, .local_row = 2 * block * i};
      piece.rows = std::min(block, architecture_.mlp_size - piece.logical_row);
      AddPiece(matrix, piece);
      piece.logical = up;
      piece.local_row += block;
      AddPiece(matrix, piece);
    }
  }

  double OutputStd() const { return kInitStd / std::sqrt(2.0 * std::max(1, architecture_.layers)); }

  // ---- Parts, from the table of families ----

  // The prefix of the family before `name`.
  std::string Named(absl::string_view name) const {
    return absl::StrCat(traits_.names.prefix, name);
  }

  // `stem`: the tensor's name without ".weight".
  void AddNorm(MatrixRole role, MatrixRole bias, absl::string_view stem, int32_t layer = -1) {
    const int64_t hidden = architecture_.hidden_size;
    const std::string name = Named(stem);
    if (traits_.norm == job::Norm::kLayer) {
      AddReplicated(bias, Zeros(name + ".bias", hidden), layer);
    }
    AddReplicated(role, Ones(name + ".weight", hidden), layer);
  }

  // What the loss is computed with.
  void AddHead() {
    const int64_t hidden = architecture_.hidden_size;
    if (traits_.predicts() && plan_.HasLoss(place_.module)) {
      AddReplicated(MatrixRole::kPredict, Weight("predict.weight", hidden, hidden));
    }
    if (!traits_.vocabulary()) return;
    if (SplitEnds()) {
      AddUnits(MatrixRole::kHead,
               Weight(Named("embed_tokens.weight"), architecture_.vocabulary, hidden),
               units_.vocabulary_blocks, architecture_.block, -1, -1, Holding::kTied,
               /*primary=*/false);
    } else if (!architecture_.tied_head) {
      AddUnits(MatrixRole::kHead, Weight("lm_head.weight", architecture_.vocabulary, hidden),
               units_.vocabulary_blocks, architecture_.block, -1);
    }
  }
  // Both ends of a tied embedding add to one gradient; where one rank has both, one matrix does.
  bool SplitEnds() const { return architecture_.tied_head && layout_.stage_layers.size() > 1; }

  // What comes before the layers.
  void AddInput() {
    switch (traits_.modality) {
      case job::Modality::kText:
        AddUnits(MatrixRole::kEmbedding,
                 Weight(Named("embed_tokens.weight"), architecture_.vocabulary,
                        architecture_.hidden_size),
                 units_.vocabulary_blocks, architecture_.block, -1, -1,
                 SplitEnds() ? Holding::kTied : Holding::kExclusive);
        break;
      case job::Modality::kImage:
        AddPatches();
        break;
      case job::Modality::kSound:
        AddConvolutions();
        break;
      case job::Modality::kNone:
        break;
    }
  }

  void AddPatches() {
    const int64_t hidden = architecture_.hidden_size, patch = architecture_.patch_size;
    const int64_t rows = job::RowsOfItem(architecture_) + job::ExtraRowsOfItem(architecture_);
    if (!traits_.names.pre_norm.empty())
      AddNorm(MatrixRole::kPreNorm, MatrixRole::kPreNormBias, traits_.names.pre_norm);
    AddReplicated(MatrixRole::kPosition,
                  Weight(Named("embeddings.position_embedding.weight"), rows, hidden));
    if (traits_.class_token) {
      AddReplicated(MatrixRole::kClass, Weight(Named("embeddings.class_embedding"), hidden, 1));
    }
    const std::string name = Named("embeddings.patch_embedding");
    if (traits_.patch_bias) AddReplicated(MatrixRole::kPatchBias, Zeros(name + ".bias", hidden));
    AddReplicated(MatrixRole::kPatch, Weight(name + ".weight", hidden, 3 * patch * patch));
  }

  void AddConvolutions() {
    const int64_t hidden = architecture_.hidden_size;
    AddReplicated(MatrixRole::kConv2Bias, Zeros(Named("conv2.bias"), hidden));
    AddReplicated(MatrixRole::kConv2, Weight(Named("conv2.weight"), hidden, 3 * hidden));
    AddReplicated(MatrixRole::kConv1Bias, Zeros(Named("conv1.bias"), hidden));
    AddReplicated(MatrixRole::kConv1,
                  Weight(Named("conv1.weight"), hidden, 3 * architecture_.mel_bins));
  }

  void AddLayer(int32_t layer) {
    const job::TensorNames& names = traits_.names;
    const std::string stem = absl::StrCat(names.layers, layer, ".");
    AddMlp(Named(stem), layer);
    AddNorm(MatrixRole::kNorm2, MatrixRole::kNorm2Bias, absl::StrCat(stem, names.norm2), layer);
    AddAttention(absl::StrCat(Named(stem), names.attention), layer);
    AddNorm(MatrixRole::kNorm1, MatrixRole::kNorm1Bias, absl::StrCat(stem, names.norm1), layer);
  }

  void AddMlp(const std::string& name, int32_t layer) {
    const int64_t hidden = architecture_.hidden_size, mlp = architecture_.mlp_size;
    const int64_t block = architecture_.block;
    const std::string up = absl::StrCat(name, traits_.names.up),
                      down = absl::StrCat(name, traits_.names.down);
    if (traits_.biases) AddReplicated(MatrixRole::kDownBias, Zeros(down + ".bias", hidden), layer);
    AddUnits(MatrixRole::kDown, Weight(down + ".weight", hidden, mlp, OutputStd()),
             units_.mlp_blocks, block, layer);
    if (traits_.gated()) {
      const int32_t gate = Weight(absl::StrCat(name, traits_.names.gate, ".weight"), mlp, hidden);
      AddGateUp(gate, Weight(up + ".weight", mlp, hidden), layer);
      return;
    }
    if (traits_.biases)
      AddUnits(MatrixRole::kUpBias, Zeros(up + ".bias", mlp), units_.mlp_blocks, block, layer);
    AddUnits(MatrixRole::kUp, Weight(up + ".weight", mlp, hidden), units_.mlp_blocks, block, layer);
  }

  void AddAttention(const std::string& name, int32_t layer) {
    const int64_t hidden = architecture_.hidden_size, head_size = HeadSize(architecture_);
    const int64_t q_rows = architecture_.heads * head_size;
    const int64_t kv_rows = KvHeads(architecture_) * head_size;
    const std::string output = absl::StrCat(name, traits_.names.output);
    if (traits_.biases) AddReplicated(MatrixRole::kOBias, Zeros(output + ".bias", hidden), layer);
    AddUnits(MatrixRole::kO, Weight(output + ".weight", hidden, q_rows, OutputStd()),
             units_.query_heads, head_size, layer);
    std::array<int32_t, 3> weights{}, biases{};
    for (size_t i = 0; i < 3; ++i) {
      const std::string part = absl::StrCat(name, std::string(1, "qkv"[i]), "_proj.");
      const int64_t rows = i == 0 ? q_rows : kv_rows;
      const bool bias = traits_.biases && (i != 1 || traits_.key_bias);
      weights[i] = Weight(part + "weight", rows, hidden);
      biases[i] = bias ? Zeros(part + "bias", rows) : kNoTensor;
    }
    if (traits_.biases) AddQkv(MatrixRole::kQkvBias, biases, 1, layer);
    AddQkv(MatrixRole::kQkv, weights, hidden, layer);
  }

  void AddProjectors() {
    for (size_t i = 0; i < plan_.spec.edges.size(); ++i) {
      const job::Edge& edge = plan_.spec.edges[i];
      if (edge.from != place_.module || !edge.projector.has_value()) continue;
      const auto index = static_cast<int32_t>(i);
      const job::Module& to = plan_.module_spec(edge.to);
      const int64_t inner = edge.projector->hidden_size, out = to.architecture.hidden_size;
      const int64_t block = architecture_.block;
      const UnitRange blocks = EvenSplit(BlockCount(inner, block), place_.width, place_.tp);
      const std::string name = absl::StrCat("projector.", to.name, ".");
      AddReplicated(MatrixRole::kProjectorDownBias, Zeros(name + "linear_2.bias", out), -1, index);
      AddUnits(MatrixRole::kProjectorDown, Weight(name + "linear_2.weight", out, inner), blocks,
               block, -1, index);
      AddUnits(MatrixRole::kProjectorUpBias, Zeros(name + "linear_1.bias", inner), blocks, block,
               -1, index);
      AddUnits(MatrixRole::kProjectorUp,
               Weight(name + "linear_1.weight", inner, architecture_.hidden_size), blocks, block,
               -1, index);
    }
  }

  // ---- Storage ----

  // Puts what trains first, cuts the order into buckets, puts matrices before vectors in each, and
  // gives offsets.
  void Store() {
    std::stable_partition(collected_.begin(), collected_.end(),
                          [](const Collected& each) { return each.matrix.trains; });
    const bool even = plan_.replicas(place_.module).EqualWidths(place_.pp);
    const int64_t alignment = kBucketAlignment * (even ? result_.replicas : 1);
    for (size_t begin = 0; begin < collected_.size();) {
      size_t end = begin;
      for (int64_t elements = 0; end < collected_.size(); ++end) {
        elements += collected_[end].healthy_elements;
        if (end == begin) continue;
        if (elements > kBucketElements ||
            collected_[end].matrix.trains != collected_[begin].matrix.trains)
          break;
      }
      const auto at = [this](size_t i) {
        return collected_.begin() + static_cast<std::ptrdiff_t>(i);
      };
      std::stable_partition(at(begin), at(end),
                            [](const Collected& each) { return each.matrix.cols > 1; });
      Bucket bucket{.offset = result_.elements,
                    .first_matrix = static_cast<int32_t>(begin),
                    .matrices = static_cast<int32_t>(end - begin)};
      for (; begin < end; ++begin) {
        LocalMatrix& matrix = collected_[begin].matrix;
        matrix.offset = bucket.offset + bucket.elements;
        bucket.elements += RoundUp(matrix.rows * matrix.cols, kMatrixAlignment);
        result_.matrices.push_back(std::move(matrix));
      }
      bucket.elements = RoundUp(bucket.elements, alignment);
      result_.elements += bucket.elements;
      if (result_.matrices.back().trains) result_.trained_extent = result_.elements;
      result_.buckets.push_back(bucket);
    }
  }

  struct Collected {
    LocalMatrix matrix;
    int64_t healthy_elements = 0;  // of a rank of the healthy width, shared units once: the mean
  };

  const Plan& plan_;
  const Place& place_;
  const int32_t chunk_;
  const job::Module& module_;
  const job::Architecture& architecture_;
  const job::FamilyTraits& traits_;
  const ModulePlan& layout_;
  const TensorUnits units_;
  std::vector<Collected> collected_;  // in the order in which backward finishes with them
  StageParameters result_;
};

// In the order of MatrixRole.
constexpr std::array<absl::string_view, 32> kRoleNames = {"embedding",
                                                          "head",
                                                          "predict",
                                                          "final_norm",
                                                          "final_norm_bias",
                                                          "norm1",
                                                          "norm1_bias",
                                                          "norm2",
                                                          "norm2_bias",
                                                          "qkv",
                                                          "qkv_bias",
                                                          "o",
                                                          "o_bias",
                                                          "gate_up",
                                                          "up",
                                                          "up_bias",
                                                          "down",
                                                          "down_bias",
                                                          "patch",
                                                          "patch_bias",
                                                          "class",
                                                          "position",
                                                          "pre_norm",
                                                          "pre_norm_bias",
                                                          "conv1",
                                                          "conv1_bias",
                                                          "conv2",
                                                          "conv2_bias",
                                                          "projector_up",
                                                          "projector_up_bias",
                                                          "projector_down",
                                                          "projector_down_bias"};
static_assert(kRoleNames.size() == static_cast<size_t>(MatrixRole::kProjectorDownBias) + 1);

}  // namespace

absl::string_view RoleName(MatrixRole role) { return kRoleNames[static_cast<size_t>(role)]; }

int64_t StageParameters::TrainedElements() const {
  int64_t elements = 0;
  for (const LocalMatrix& matrix : matrices) {
    if (matrix.trains) elements += matrix.rows * matrix.cols;
  }
  return elements;
}

int64_t StageParameters::LedElements() const {
  int64_t elements = 0;
  for (const LocalMatrix& matrix : matrices) {
    if (!matrix.trains) continue;
    int64_t followed = 0;
    bool leads = false;
    for (const Piece& piece : matrix.pieces) {
      leads |= piece.primary;
      if (!piece.primary) followed += piece.rows;
    }
    if (leads) elements += (matrix.rows - followed) * matrix.cols;
  }
  return elements;
}

const LocalMatrix* StageParameters::Find(MatrixRole role, int32_t layer, int32_t edge) const {
  const auto found = std::find_if(matrices.begin(), matrices.end(), [&](const LocalMatrix& matrix) {
    return matrix.layer == layer && matrix.edge == edge && matrix.role == role;
  });
  return found == matrices.end() ? nullptr : &*found;
}

StageParameters ParametersOf(const Plan& plan, const Place& place, int32_t chunk) {
  return PartBuilder(plan, place, chunk).Build();
}

PartKind KindOfPart(const Plan& plan, const PartId& part) {
  const ModulePlan& module = plan.modules[static_cast<size_t>(part.module)];
  const Trains& trains = module.TrainsOf(part.stage, part.chunk);
  return {module.layers(part.stage, part.chunk).count, module.IsFirst(part.stage, part.chunk),
          module.IsLast(part.stage, part.chunk), trains.weights, trains.inputs};
}

}  // namespace phalanx::plan

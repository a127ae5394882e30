#include "core/plan/parameters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using Init = LogicalTensor::Init;

constexpr double kInitStd = 0.02;
constexpr int32_t kNoTensor = -1;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A rectangle of a logical tensor and its place in a local matrix.
struct Rectangle {
  int64_t logical_row = 0, logical_col = 0;
  int64_t local_row = 0, local_col = 0;
  int64_t rows = 0, cols = 0;
};

// Collects the matrices of one pipeline part in the order in which backward finishes with them.
class PartBuilder {
 public:
  PartBuilder(const Plan& plan, const Place& place, int32_t chunk)
      : plan_(plan),
        place_(place),
        chunk_(chunk),
        module_(plan.module_spec(place.module)),
        architecture_(module_.architecture),
        layout_(plan.modules[static_cast<size_t>(place.module)]),
        shard_(ShardOf(architecture_, place.width, place.tp)) {}

  StageParameters Build() && {
    if (!HasParameters(architecture_.family) || chunk_ >= layout_.chunks()) return {};
    const bool last = layout_.IsLast(place_.pp, chunk_);
    if (last) AddProjectors();
    switch (architecture_.family) {
      case job::Family::kLlama:
        AddLlama(last);
        break;
      case job::Family::kRegressor:
        AddRegressor(last);
        break;
      case job::Family::kClipVision:
        AddClipVision();
        break;
      case job::Family::kWhisper:
        AddWhisper(last);
        break;
      case job::Family::kNone:
        break;
    }
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

  LocalMatrix& Matrix(std::string role, int64_t rows, int64_t cols, int32_t layer = -1,
                      int32_t edge = -1) {
    LocalMatrix matrix;
    matrix.role = std::move(role);
    matrix.layer = layer;
    matrix.edge = edge;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.trains =
        edge < 0 ? !module_.frozen : !plan_.spec.edges[static_cast<size_t>(edge)].projector->frozen;
    result_.matrices.push_back(std::move(matrix));
    return result_.matrices.back();
  }

  static void AddPiece(LocalMatrix& matrix, int32_t logical, const Rectangle& where,
                       Holding holding = Holding::kExclusive, bool primary = true) {
    if (where.rows <= 0 || where.cols <= 0) return;
    matrix.pieces.push_back({.logical = logical,
                             .logical_row = where.logical_row,
                             .logical_col = where.logical_col,
                             .local_row = where.local_row,
                             .local_col = where.local_col,
                             .rows = where.rows,
                             .cols = where.cols,
                             .holding = holding,
                             .primary = primary});
  }

  // The whole tensor, on every tensor rank.
  void AddReplicated(std::string role, int32_t logical, int32_t layer = -1, int32_t edge = -1) {
    const LogicalTensor& tensor = result_.logical[static_cast<size_t>(logical)];
    const int64_t rows = tensor.rows, cols = tensor.cols;
    LocalMatrix& matrix = Matrix(std::move(role), rows, cols, layer, edge);
    AddPiece(matrix, logical, {.rows = rows, .cols = cols},
             place_.width == 1 ? Holding::kExclusive : Holding::kDuplicate, place_.tp == 0);
  }

  // ---- Attention and MLP, common to the families ----

  // Rows of this rank's KV heads, cut where the set of holders changes.
  void AddKvPieces(LocalMatrix& matrix, int32_t logical, int64_t local_row, int64_t cols) {
    if (logical == kNoTensor) return;
    const int64_t head_size = HeadSize(architecture_);
    for (int64_t head = shard_.kv_heads.first; head < shard_.kv_heads.end();) {
      const UnitRange holders = HoldersOfKvHead(architecture_, place_.width, head);
      int64_t end = head + 1;
      while (end < shard_.kv_heads.end() &&
             HoldersOfKvHead(architecture_, place_.width, end) == holders) {
        ++end;
      }
      AddPiece(matrix, logical,
               {.logical_row = head * head_size,
                .local_row = local_row + (head - shard_.kv_heads.first) * head_size,
                .rows = (end - head) * head_size,
                .cols = cols},
               holders.count == 1 ? Holding::kExclusive : Holding::kPartial,
               holders.first == place_.tp);
      head = end;
    }
  }

  // Query, key and value rows of one matrix; `cols` 1 for a bias. Rows of kNoTensor are padding.
  void AddQkv(std::string role, const std::array<int32_t, 3>& logical, int64_t cols,
              int32_t layer) {
    const int64_t head_size = HeadSize(architecture_);
    const int64_t q_rows = shard_.query_heads.count * head_size;
    const int64_t kv_rows = shard_.kv_heads.count * head_size;
    LocalMatrix& matrix = Matrix(std::move(role), q_rows + 2 * kv_rows, cols, layer);
    AddPiece(matrix, logical[0],
             {.logical_row = shard_.query_heads.first * head_size, .rows = q_rows, .cols = cols});
    AddKvPieces(matrix, logical[1], q_rows, cols);
    AddKvPieces(matrix, logical[2], q_rows + kv_rows, cols);
  }

  void AddAttentionOutput(int32_t logical, int32_t layer) {
    const int64_t head_size = HeadSize(architecture_);
    const int64_t cols = shard_.query_heads.count * head_size;
    LocalMatrix& matrix = Matrix("o", architecture_.hidden_size, cols, layer);
    AddPiece(matrix, logical,
             {.logical_col = shard_.query_heads.first * head_size,
              .rows = architecture_.hidden_size,
              .cols = cols});
  }

  // Blocks of rows: an up projection, its bias, a vocabulary.
  LocalMatrix& AddBlockRows(std::string role, int32_t logical, UnitRange blocks, int32_t layer = -1,
                            int32_t edge = -1, Holding holding = Holding::kExclusive,
                            bool primary = true) {
    const LogicalTensor tensor = result_.logical[static_cast<size_t>(logical)];
    const int64_t block = architecture_.block;
    LocalMatrix& matrix = Matrix(std::move(role), blocks.count * block, tensor.cols, layer, edge);
    const int64_t first = blocks.first * block;
    AddPiece(matrix, logical,
             {.logical_row = first,
              .rows = std::min(tensor.rows, blocks.end() * block) - first,
              .cols = tensor.cols},
             holding, primary);
    return matrix;
  }

  // Blocks of columns: a down projection.
  void AddBlockCols(std::string role, int32_t logical, UnitRange blocks, int32_t layer,
                    int32_t edge = -1) {
    const LogicalTensor tensor = result_.logical[static_cast<size_t>(logical)];
    const int64_t block = architecture_.block;
    LocalMatrix& matrix = Matrix(std::move(role), tensor.rows, blocks.count * block, layer, edge);
    const int64_t first = blocks.first * block;
    AddPiece(matrix, logical,
             {.logical_col = first,
              .rows = tensor.rows,
              .cols = std::min(tensor.cols, blocks.end() * block) - first});
  }

  // Gate and up rows, interleaved block by block.
  void AddGateUp(int32_t gate, int32_t up, int32_t layer) {
    const int64_t block = architecture_.block, hidden = architecture_.hidden_size;
    const UnitRange blocks = shard_.mlp_blocks;
    LocalMatrix& matrix = Matrix("gate_up", 2 * block * blocks.count, hidden, layer);
    for (int64_t i = 0; i < blocks.count; ++i) {
      Rectangle where{
          .logical_row = (blocks.first + i) * block, .local_row = 2 * block * i, .cols = hidden};
      where.rows = std::min(block, architecture_.mlp_size - where.logical_row);
      AddPiece(matrix, gate, where);
      where.local_row += block;
      AddPiece(matrix, up, where);
    }
  }

  double OutputStd() const { return kInitStd / std::sqrt(2.0 * std::max(1, architecture_.layers)); }

  // ---- Families ----

  void AddLlama(bool last) {
    const int64_t hidden = architecture_.hidden_size;
    const bool first = layout_.IsFirst(place_.pp, chunk_);
    const bool tied = architecture_.tied_head;
    // Both ends of a tied embedding add to one gradient; where one rank has both, one matrix does.
    const bool split_ends = tied && layout_.stage_layers.size() > 1;
    if (last) {
      if (split_ends) {
        AddBlockRows("head", Weight("model.embed_tokens.weight", architecture_.vocabulary, hidden),
                     shard_.vocabulary_blocks, -1, -1, Holding::kPartial, /*primary=*/false);
      } else if (!tied) {
        AddBlockRows("head", Weight("lm_head.weight", architecture_.vocabulary, hidden),
                     shard_.vocabulary_blocks);
      }
      AddReplicated("final_norm", Ones("model.norm.weight", hidden));
    }
    AddDecoderLayers();
    if (first) {
      AddBlockRows(
          "embedding", Weight("model.embed_tokens.weight", architecture_.vocabulary, hidden),
          shard_.vocabulary_blocks, -1, -1, split_ends ? Holding::kPartial : Holding::kExclusive);
    }
  }

  void AddRegressor(bool last) {
    const int64_t hidden = architecture_.hidden_size;
    if (last) {
      if (plan_.HasLoss(place_.module)) {
        AddReplicated("predict", Weight("predict.weight", hidden, hidden));
      }
      AddReplicated("final_norm", Ones("model.norm.weight", hidden));
    }
    AddDecoderLayers();
  }

  void AddDecoderLayers() {
    const LayerRange layers = layout_.layers(place_.pp, chunk_);
    for (int32_t layer = layers.first + layers.count; layer-- > layers.first;) {
      AddDecoderLayer(layer);
    }
  }

  void AddDecoderLayer(int32_t layer) {
    const int64_t hidden = architecture_.hidden_size, mlp = architecture_.mlp_size;
    const int64_t head_size = HeadSize(architecture_);
    const int64_t q_rows = architecture_.heads * head_size;
    const int64_t kv_rows = KvHeads(architecture_) * head_size;
    const std::string name = absl::StrCat("model.layers.", layer, ".");
    AddBlockCols("down", Weight(name + "mlp.down_proj.weight", hidden, mlp, OutputStd()),
                 shard_.mlp_blocks, layer);
    const int32_t gate = Weight(name + "mlp.gate_proj.weight", mlp, hidden);
    AddGateUp(gate, Weight(name + "mlp.up_proj.weight", mlp, hidden), layer);
    AddReplicated("post_norm", Ones(name + "post_attention_layernorm.weight", hidden), layer);
    AddAttentionOutput(Weight(name + "self_attn.o_proj.weight", hidden, q_rows, OutputStd()),
                       layer);
    const int32_t q = Weight(name + "self_attn.q_proj.weight", q_rows, hidden);
    const int32_t k = Weight(name + "self_attn.k_proj.weight", kv_rows, hidden);
    const int32_t v = Weight(name + "self_attn.v_proj.weight", kv_rows, hidden);
    AddQkv("qkv", {q, k, v}, hidden, layer);
    AddReplicated("input_norm", Ones(name + "input_layernorm.weight", hidden), layer);
  }

  void AddClipVision() {
    const std::string name = "vision_model.";
    AddEncoderLayers({.prefix = name + "encoder.layers.",
                      .norm1 = "layer_norm1",
                      .norm2 = "layer_norm2",
                      .mlp = "mlp.",
                      .key_bias = true});
    if (!layout_.IsFirst(place_.pp, chunk_)) return;
    const int64_t hidden = architecture_.hidden_size, patch = architecture_.patch_size;
    const int64_t side = patch > 0 ? architecture_.image_size / patch : 0;
    AddReplicated("pre_norm_bias", Zeros(name + "pre_layrnorm.bias", hidden));
    AddReplicated("pre_norm", Ones(name + "pre_layrnorm.weight", hidden));
    AddReplicated("position",
                  Weight(name + "embeddings.position_embedding.weight", side * side + 1, hidden));
    AddReplicated("class", Weight(name + "embeddings.class_embedding", hidden, 1));
    AddReplicated("patch",
                  Weight(name + "embeddings.patch_embedding.weight", hidden, 3 * patch * patch));
  }

  void AddWhisper(bool last) {
    const int64_t hidden = architecture_.hidden_size;
    const std::string name = "model.encoder.";
    if (last) {
      AddReplicated("final_norm_bias", Zeros(name + "layer_norm.bias", hidden));
      AddReplicated("final_norm", Ones(name + "layer_norm.weight", hidden));
    }
    AddEncoderLayers({.prefix = name + "layers.",
                      .norm1 = "self_attn_layer_norm",
                      .norm2 = "final_layer_norm",
                      .mlp = "",
                      .key_bias = false});
    if (!layout_.IsFirst(place_.pp, chunk_)) return;
    AddReplicated("conv2_bias", Zeros(name + "conv2.bias", hidden));
    AddReplicated("conv2", Weight(name + "conv2.weight", hidden, 3 * hidden));
    AddReplicated("conv1_bias", Zeros(name + "conv1.bias", hidden));
    AddReplicated("conv1", Weight(name + "conv1.weight", hidden, 3 * architecture_.mel_bins));
  }

  // What the encoders call the same things.
  struct EncoderNames {
    std::string prefix;  // before the layer's number
    std::string norm1, norm2;
    std::string mlp;  // before fc1 and fc2
    bool key_bias;
  };

  void AddEncoderLayers(const EncoderNames& names) {
    const LayerRange layers = layout_.layers(place_.pp, chunk_);
    for (int32_t layer = layers.first + layers.count; layer-- > layers.first;) {
      AddEncoderLayer(names, layer);
    }
  }

  void AddEncoderLayer(const EncoderNames& names, int32_t layer) {
    const int64_t hidden = architecture_.hidden_size, mlp = architecture_.mlp_size;
    const int64_t rows = architecture_.heads * HeadSize(architecture_);
    const std::string name = absl::StrCat(names.prefix, layer, ".");
    const std::string attention = name + "self_attn.", fc = name + names.mlp;
    AddReplicated("down_bias", Zeros(fc + "fc2.bias", hidden), layer);
    AddBlockCols("down", Weight(fc + "fc2.weight", hidden, mlp, OutputStd()), shard_.mlp_blocks,
                 layer);
    AddBlockRows("up_bias", Zeros(fc + "fc1.bias", mlp), shard_.mlp_blocks, layer);
    AddBlockRows("up", Weight(fc + "fc1.weight", mlp, hidden), shard_.mlp_blocks, layer);
    AddReplicated("norm2_bias", Zeros(name + names.norm2 + ".bias", hidden), layer);
    AddReplicated("norm2", Ones(name + names.norm2 + ".weight", hidden), layer);
    AddReplicated("o_bias", Zeros(attention + "out_proj.bias", hidden), layer);
    AddAttentionOutput(Weight(attention + "out_proj.weight", hidden, rows, OutputStd()), layer);
    std::array<int32_t, 3> weights{}, biases{};
    for (size_t i = 0; i < 3; ++i) {
      const std::string part = absl::StrCat(attention, std::string(1, "qkv"[i]), "_proj.");
      weights[i] = Weight(part + "weight", rows, hidden);
      biases[i] = i != 1 || names.key_bias ? Zeros(part + "bias", rows) : kNoTensor;
    }
    AddQkv("qkv_bias", biases, 1, layer);
    AddQkv("qkv", weights, hidden, layer);
    AddReplicated("norm1_bias", Zeros(name + names.norm1 + ".bias", hidden), layer);
    AddReplicated("norm1", Ones(name + names.norm1 + ".weight", hidden), layer);
  }

  void AddProjectors() {
    for (size_t i = 0; i < plan_.spec.edges.size(); ++i) {
      const job::Edge& edge = plan_.spec.edges[i];
      if (edge.from != place_.module || !edge.projector.has_value()) continue;
      const auto index = static_cast<int32_t>(i);
      const job::Module& to = plan_.module_spec(edge.to);
      const int64_t inner = edge.projector->hidden_size, out = to.architecture.hidden_size;
      const UnitRange blocks =
          EvenSplit(BlockCount(inner, architecture_.block), place_.width, place_.tp);
      const std::string name = absl::StrCat("projector.", to.name, ".");
      AddReplicated("projector_down_bias", Zeros(name + "linear_2.bias", out), -1, index);
      AddBlockCols("projector_down", Weight(name + "linear_2.weight", out, inner), blocks, -1,
                   index);
      AddBlockRows("projector_up_bias", Zeros(name + "linear_1.bias", inner), blocks, -1, index);
      AddBlockRows("projector_up",
                   Weight(name + "linear_1.weight", inner, architecture_.hidden_size), blocks, -1,
                   index);
    }
  }

  // ---- Storage ----

  // Cuts the collected order into buckets, puts matrices before vectors in each, and gives offsets.
  void Store() {
    std::vector<LocalMatrix> collected = std::exchange(result_.matrices, {});
    const int64_t alignment = kBucketAlignment * result_.replicas;
    for (size_t begin = 0; begin < collected.size();) {
      size_t end = begin;
      for (int64_t elements = 0; end < collected.size(); ++end) {
        elements += RoundUp(collected[end].rows * collected[end].cols, kMatrixAlignment);
        if (end > begin && elements > kBucketElements) break;
      }
      const auto at = [&collected](size_t i) {
        return collected.begin() + static_cast<std::ptrdiff_t>(i);
      };
      std::stable_partition(at(begin), at(end),
                            [](const LocalMatrix& matrix) { return matrix.cols > 1; });
      Bucket bucket{.offset = result_.elements,
                    .first_matrix = static_cast<int32_t>(begin),
                    .matrices = static_cast<int32_t>(end - begin)};
      for (; begin < end; ++begin) {
        LocalMatrix& matrix = collected[begin];
        matrix.offset = bucket.offset + bucket.elements;
        bucket.elements += RoundUp(matrix.rows * matrix.cols, kMatrixAlignment);
        result_.matrices.push_back(std::move(matrix));
      }
      bucket.elements = RoundUp(bucket.elements, alignment);
      result_.elements += bucket.elements;
      result_.buckets.push_back(bucket);
    }
  }

  const Plan& plan_;
  const Place& place_;
  const int32_t chunk_;
  const job::Module& module_;
  const job::Architecture& architecture_;
  const ModulePlan& layout_;
  const Shard shard_;
  StageParameters result_;
};

}  // namespace

bool HasParameters(job::Family family) { return family != job::Family::kNone; }

int64_t StageParameters::TrainedElements() const {
  int64_t elements = 0;
  for (const LocalMatrix& matrix : matrices) {
    if (matrix.trains) elements += matrix.rows * matrix.cols;
  }
  return elements;
}

const LocalMatrix* StageParameters::Find(const std::string& role, int32_t layer,
                                         int32_t edge) const {
  const auto found = std::find_if(matrices.begin(), matrices.end(), [&](const LocalMatrix& matrix) {
    return matrix.layer == layer && matrix.edge == edge && matrix.role == role;
  });
  return found == matrices.end() ? nullptr : &*found;
}

StageParameters ParametersOf(const Plan& plan, const Place& place, int32_t chunk) {
  return PartBuilder(plan, place, chunk).Build();
}

double InitialValue(uint64_t seed, const std::string& module, const LogicalTensor& tensor,
                    int64_t index) {
  return InitialValues(seed, module, tensor)(index);
}

}  // namespace phalanx::plan

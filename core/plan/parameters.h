// core/plan/parameters.h: the parameters of one rank's pipeline part, made of units.
//
// A *logical tensor* is a parameter of the unsharded model under its Hugging Face name, seen as a
// matrix [rows, cols] (a vector is [n, 1]). A *local matrix* is what a rank multiplies with: query,
// key and value rows in one matrix, gate and up rows interleaved per block. Row-parallel matrices
// are stored transposed, so that each unit of any matrix is a run of its whole rows. *Pieces* map
// rows of logical tensors to rows of local matrices; initial values, export, checkpoints and moves
// are loops over pieces. What no piece covers is padding and stays 0.
//
// Storage: what trains first; reverse layer order (backward finishes the front of the buffer
// first), cut into buckets that train or do not; in each bucket matrices come before vectors. The
// cuts follow from the sizes at the healthy width, so that ranks of a stage have the same matrices
// in each bucket, whatever their widths. Where the widths of a stage are equal, each bucket is
// padded to a multiple of 128 * replicas elements, so that a data-parallel share is 1/replicas of
// it.
//
// Names and local matrices (role, shape as stored), N a layer; "first" and "last": on that stage
// only; T: transposed.
//
//   llama
//     model.embed_tokens.weight                     embedding   first: [blocks * block, hidden]
//     model.layers.N.input_layernorm.weight         norm1       [hidden]
//     model.layers.N.self_attn.{q,k,v}_proj.weight  qkv         [(q + 2 kv) * head_size, hidden]
//                                                               q rows, then k rows, then v rows
//     model.layers.N.self_attn.o_proj.weight        o           [q * head_size, hidden] T
//     model.layers.N.post_attention_layernorm.weight  norm2     [hidden]
//     model.layers.N.mlp.{gate,up}_proj.weight      gate_up     [2 * block * blocks, hidden]
//                                                               per block gate rows, then up rows
//     model.layers.N.mlp.down_proj.weight           down        [block * blocks, hidden] T
//     model.norm.weight                             final_norm  last: [hidden]
//     lm_head.weight                                head        last: as embedding
//   regressor: as llama, but neither embedding nor head; where it has a loss (Plan::HasLoss)
//     predict.weight                                predict     last: [hidden, hidden]
//   A tied head: with one pipeline part there is no matrix "head", and "embedding" serves both
//   ends; with several, "head" has pieces of model.embed_tokens.weight, partial at both ends.
//
//   vision encoders; (*) where the family has it (core/job/family.h)
//     vision_model.embeddings.patch_embedding.weight      patch     [hidden, 3 * patch * patch]
//     vision_model.embeddings.patch_embedding.bias        patch_bias (*)
//     vision_model.embeddings.class_embedding             class (*) [hidden]
//     vision_model.embeddings.position_embedding.weight   position  [patches, hidden], with a class
//                                                                   token one row more
//     vision_model.pre_layrnorm.{weight,bias}             pre_norm, pre_norm_bias (*)
//     vision_model.encoder.layers.N.
//       layer_norm1.{weight,bias}                         norm1, norm1_bias
//       self_attn.{q,k,v}_proj.{weight,bias}              qkv, qkv_bias
//       self_attn.out_proj.{weight,bias}                  o T, o_bias
//       layer_norm2.{weight,bias}                         norm2, norm2_bias
//       mlp.fc1.{weight,bias}, mlp.fc2.{weight,bias}      up, up_bias, down T, down_bias
//     vision_model.post_layernorm.{weight,bias}           final_norm, final_norm_bias (*)  last
//
//   whisper (WhisperEncoder; its fixed positions are computed, not held; keys have no bias, so the
//   key rows of qkv_bias are padding), layers with the roles of vision encoders'
//     model.encoder.conv1.{weight,bias}             conv1, conv1_bias  first: [hidden, 3 * bins]
//     model.encoder.conv2.{weight,bias}             conv2, conv2_bias  first: [hidden, 3 * hidden]
//     model.encoder.layers.N.
//       self_attn_layer_norm.{weight,bias}          norm1, norm1_bias
//       self_attn.{q,k,v}_proj.weight               qkv
//       self_attn.{q,v}_proj.bias                   qkv_bias
//       self_attn.out_proj.{weight,bias}            o T, o_bias
//       final_layer_norm.{weight,bias}              norm2, norm2_bias
//       fc1.{weight,bias}, fc2.{weight,bias}        up, up_bias, down T, down_bias
//     model.encoder.layer_norm.{weight,bias}        final_norm, final_norm_bias  last
//
//   projector of an edge, on the last stage of its source, tensor-parallel like an MLP
//     projector.TO.linear_1.{weight,bias}                 projector_up, projector_up_bias
//     projector.TO.linear_2.{weight,bias}                 projector_down T, projector_down_bias
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/prng.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

inline constexpr int64_t kBucketElements = 40'000'000;  // at the healthy width
inline constexpr int64_t kBucketAlignment = 128;  // times the replicas where shares are equal parts
// Every local matrix starts at a multiple of this many elements: a 16-byte boundary whatever the
// type, so that GEMMs take the fast path and vectors their wide loads.
inline constexpr int64_t kMatrixAlignment = 64;

struct LogicalTensor {
  std::string name;  // prefixed by nothing: unique within a module
  int64_t rows = 0, cols = 1;
  enum class Init : uint8_t { kNormal, kZero, kOne } init = Init::kNormal;
  double init_std = 0.0;  // kNormal
  bool decay = false;     // weight decay applies: matrices, not vectors
};

// Who else in the replica has this piece.
enum class Holding : uint8_t {
  kExclusive,  // nobody
  kPartial,  // others of the tensor group, each with one summand of its gradient: shared KV heads;
             // under sequence parallelism norms and row-parallel biases of the layers
  kDuplicate,  // all of it, each with the whole gradient: norms, row-parallel biases; width > 1
  kTied,  // nobody of the tensor group, but the other end of a tied embedding, in another part:
          // each end with one summand of the gradient
};

// Whole rows of a local matrix; rows of a transposed one are columns of the logical tensor.
struct Piece {
  int32_t logical = 0;      // index into StageParameters::logical
  int64_t logical_row = 0;  // of a transposed matrix a column
  int64_t local_row = 0;
  int64_t rows = 0;
  Holding holding = Holding::kExclusive;
  int32_t holders = 1;  // ranks of the tensor group that have it
  // This rank leads the copies of its replica (copies.h): it alone updates the piece, and counts it
  // in the gradient norm. The first tensor rank that holds it; of a tied embedding, the embedding.
  bool primary = true;
};

// What the model asks for a local matrix by. Named as in the table above.
enum class MatrixRole : uint8_t {
  kEmbedding,
  kHead,
  kPredict,
  kFinalNorm,
  kFinalNormBias,
  kNorm1,
  kNorm1Bias,
  kNorm2,
  kNorm2Bias,
  kQkv,
  kQkvBias,
  kO,
  kOBias,
  kGateUp,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kPatch,
  kPatchBias,
  kClass,
  kPosition,
  kPreNorm,
  kPreNormBias,
  kConv1,
  kConv1Bias,
  kConv2,
  kConv2Bias,
  kProjectorUp,
  kProjectorUpBias,
  kProjectorDown,
  kProjectorDownBias,
};
absl::string_view RoleName(MatrixRole role);  // "embedding", "qkv_bias", ...

struct LocalMatrix {
  MatrixRole role = MatrixRole::kEmbedding;
  int32_t layer = -1;          // of the module; -1: none
  int32_t edge = -1;           // projector roles
  int64_t rows = 0, cols = 1;  // as stored
  int64_t offset = 0;          // elements, in the flat buffers
  bool transposed = false;     // row-parallel: a logical tensor of it is [cols, ...]
  // Whether it has a gradient and optimizer state: not in a frozen module or projector.
  bool trains = true;
  std::vector<Piece> pieces;
};

struct Bucket {
  int64_t offset = 0, elements = 0;  // padded
  int32_t first_matrix = 0, matrices = 0;
};

struct StageParameters {
  std::vector<LogicalTensor> logical;
  std::vector<LocalMatrix> matrices;  // in storage order
  std::vector<Bucket> buckets;
  int64_t elements = 0;        // of the flat buffer, padding included
  int64_t trained_extent = 0;  // of its front, whose buckets train; only it has gradients
  int32_t replicas = 1;        // data-parallel shares of each bucket

  // Elements of the matrices that train, padding between them left out. 0: the part needs no
  // gradient buffer and has no optimizer state.
  int64_t TrainedElements() const;
  // Of these, the ones that this rank leads (copies.h), padding of what it leads included: what its
  // replicas keep optimizer state for.
  int64_t LedElements() const;
  // The matrix of a role, or nullptr. layer and edge as in LocalMatrix.
  const LocalMatrix* Find(MatrixRole role, int32_t layer = -1, int32_t edge = -1) const;
};

// Parameters of `place`'s pipeline part (chunk of its stage). The same list, element for element,
// on every rank with the same module, stage, width and tensor coordinate. Empty for a module
// without a family and for a chunk that the stage does not have.
StageParameters ParametersOf(const Plan& plan, const Place& place, int32_t chunk = 0);

// Parts of a module that are of one kind have parameters alike on each of as many tensor ranks: how
// many layers, whether it is the first and the last part, and what of it trains.
using PartKind = std::tuple<int32_t, bool, bool, bool, bool>;
PartKind KindOfPart(const Plan& plan, const PartId& part);

// Initial values of one logical tensor: element `index` = row * cols + col is a pure function of
// (seed, module name, tensor name, index), so no layout changes it. Immutable; safe to read from
// any thread.
class InitialValues {
 public:
  InitialValues(uint64_t seed, const std::string& module, const LogicalTensor& tensor)
      : init_(tensor.init),
        std_(tensor.init_std),
        stream_(Mix64(Mix64(seed ^ StreamOf("initial weights")) ^
                      StreamOf(module + "/" + tensor.name))) {}

  double operator()(int64_t index) const {
    if (init_ == LogicalTensor::Init::kZero) return 0.0;
    if (init_ == LogicalTensor::Init::kOne) return 1.0;
    return std_ * UnitNormal(Mix64(stream_ ^ static_cast<uint64_t>(index)));
  }

 private:
  LogicalTensor::Init init_;
  double std_;
  uint64_t stream_;  // Hash64 up to its last argument
};

}  // namespace phalanx::plan

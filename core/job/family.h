// core/job/family.h: what families of modules there are, as data.
//
// One table says everything that tells families apart: rules, costs, parameters, data, layers and
// documentation read it, and nothing else asks which family a module is of. A new family whose
// parts exist already is a value of the enumeration and a row here.
//
// Words: an *encoder* reads items (images, sounds) and makes rows of them; a *decoder* works on the
// sequence that samples become. *Rows in the layers* of an item are its rows and, where the family
// has one, the class token's.
//
// Pure. The table is a constant; safe to read from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/strings/string_view.h"

namespace phalanx::job {

struct Architecture;

// kNone: `phalanx plan` without cost, memory or unit figures.
enum class Family : uint8_t { kNone, kClipVision, kSiglipVision, kWhisper, kLlama, kRegressor };

enum class FamilyKind : uint8_t { kNone, kDecoder, kEncoder };
// What its first part reads of a sample, beside rows of other modules.
enum class Modality : uint8_t { kNone, kText, kImage, kSound };
enum class Norm : uint8_t { kRms, kLayer };  // kLayer has a bias
enum class Activation : uint8_t { kSwiGlu, kGelu, kQuickGelu, kGeluTanh };
enum class Positions : uint8_t {
  kRotary,     // of queries and keys, in every layer
  kLearned,    // a table, added before the first layer
  kSinusoidal  // computed, added before the first layer
};
// What its last part computes a loss with.
enum class HeadKind : uint8_t {
  kNone,
  kVocabulary,  // cross-entropy of the next token: a language module
  kPrediction   // squared error of target rows, where nothing else takes the module's rows
};

// Hugging Face's names of tensors: PREFIX LAYERS N . NAME .weight, PREFIX NAME .weight.
struct TensorNames {
  absl::string_view prefix, layers;
  absl::string_view norm1, attention, output, norm2;  // of a layer; ATTENTION {q,k,v}_proj
  absl::string_view gate, up, down;                   // of its MLP; no gate but in kSwiGlu
  absl::string_view final_norm, pre_norm;             // empty: has none
};

// (value / 255 - mean) / deviation, of red, green and blue.
struct PixelScale {
  std::array<float, 3> mean = {}, deviation = {};
};

struct FamilyTraits {
  absl::string_view name;     // in a job file; empty: no family
  absl::string_view summary;  // for people
  FamilyKind kind = FamilyKind::kNone;
  Modality modality = Modality::kNone;
  Norm norm = Norm::kLayer;
  Activation activation = Activation::kGelu;
  Positions positions = Positions::kLearned;
  HeadKind head = HeadKind::kNone;
  bool grouped_queries = false;  // may have fewer key and value heads than query heads
  bool biases = false;           // in every linear layer
  bool key_bias = false;         // in that of keys too
  bool patch_bias = false;       // in that of patches
  bool class_token = false;      // a row before those of each image, which is no feature
  TensorNames names = {};
  PixelScale pixels = {};  // kImage

  constexpr bool known() const { return kind != FamilyKind::kNone; }
  constexpr bool decoder() const { return kind == FamilyKind::kDecoder; }
  constexpr bool encoder() const { return kind == FamilyKind::kEncoder; }
  constexpr bool vocabulary() const { return head == HeadKind::kVocabulary; }
  constexpr bool predicts() const { return head == HeadKind::kPrediction; }
  constexpr bool images() const { return modality == Modality::kImage; }
  constexpr bool sounds() const { return modality == Modality::kSound; }
  constexpr bool gated() const { return activation == Activation::kSwiGlu; }
};

inline constexpr TensorNames kDecoderNames = {.prefix = "model.",
                                              .layers = "layers.",
                                              .norm1 = "input_layernorm",
                                              .attention = "self_attn.",
                                              .output = "o_proj",
                                              .norm2 = "post_attention_layernorm",
                                              .gate = "mlp.gate_proj",
                                              .up = "mlp.up_proj",
                                              .down = "mlp.down_proj",
                                              .final_norm = "norm"};

// Vision encoders have one norm beside those of their layers: before or behind them.
constexpr TensorNames VisionNames(absl::string_view pre_norm, absl::string_view final_norm) {
  return {.prefix = "vision_model.",
          .layers = "encoder.layers.",
          .norm1 = "layer_norm1",
          .attention = "self_attn.",
          .output = "out_proj",
          .norm2 = "layer_norm2",
          .up = "mlp.fc1",
          .down = "mlp.fc2",
          .final_norm = final_norm,
          .pre_norm = pre_norm};
}

// In the order of the enumeration.
inline constexpr FamilyTraits kFamilies[] = {
    {},
    {.name = "clip_vision",
     .summary = "A CLIP-like vision encoder (CLIPVisionModel). Its rows are those of the patches "
                "after the last layer, without the class token's and without a last norm.",
     .kind = FamilyKind::kEncoder,
     .modality = Modality::kImage,
     .activation = Activation::kQuickGelu,
     .biases = true,
     .key_bias = true,
     .class_token = true,
     .names = VisionNames("pre_layrnorm", ""),
     .pixels = {.mean = {0.48145466f, 0.4578275f, 0.40821073f},
                .deviation = {0.26862954f, 0.26130258f, 0.27577711f}}},
    {.name = "siglip_vision",
     .summary = "A SigLIP-like vision encoder (SiglipVisionModel). Its rows are those of the "
                "patches after the last norm, without the attention that pools them.",
     .kind = FamilyKind::kEncoder,
     .modality = Modality::kImage,
     .activation = Activation::kGeluTanh,
     .biases = true,
     .key_bias = true,
     .patch_bias = true,
     .names = VisionNames("", "post_layernorm"),
     .pixels = {.mean = {0.5f, 0.5f, 0.5f}, .deviation = {0.5f, 0.5f, 0.5f}}},
    {.name = "whisper",
     .summary = "A Whisper-like audio encoder (WhisperEncoder).",
     .kind = FamilyKind::kEncoder,
     .modality = Modality::kSound,
     .positions = Positions::kSinusoidal,
     .biases = true,
     .names = {.prefix = "model.encoder.",
               .layers = "layers.",
               .norm1 = "self_attn_layer_norm",
               .attention = "self_attn.",
               .output = "out_proj",
               .norm2 = "final_layer_norm",
               .up = "fc1",
               .down = "fc2",
               .final_norm = "layer_norm"}},
    {.name = "llama",
     .summary = "A Llama-like decoder with a vocabulary: the language module.",
     .kind = FamilyKind::kDecoder,
     .modality = Modality::kText,
     .norm = Norm::kRms,
     .activation = Activation::kSwiGlu,
     .positions = Positions::kRotary,
     .head = HeadKind::kVocabulary,
     .grouped_queries = true,
     .names = kDecoderNames},
    {.name = "regressor",
     .summary = "A Llama-like decoder without a vocabulary: it works on rows of other modules and "
                "predicts target rows.",
     .kind = FamilyKind::kDecoder,
     .norm = Norm::kRms,
     .activation = Activation::kSwiGlu,
     .positions = Positions::kRotary,
     .head = HeadKind::kPrediction,
     .grouped_queries = true,
     .names = kDecoderNames},
};
inline constexpr size_t kFamilyCount = std::size(kFamilies);
// The one that a module without a family has.
inline constexpr Family kNoFamily = Family::kNone;

constexpr const FamilyTraits& TraitsOf(Family family) {
  return kFamilies[static_cast<size_t>(family)];
}
const FamilyTraits& TraitsOf(const Architecture& architecture);

// A set of families: bit i stands for the i-th.
using FamilySet = uint32_t;
static_assert(kFamilyCount <= 32);
constexpr FamilySet SetOf(Family family) { return FamilySet{1} << static_cast<unsigned>(family); }
template <typename Predicate>
constexpr FamilySet FamiliesWhere(Predicate predicate) {
  FamilySet set = 0;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    if (predicate(kFamilies[i])) set |= SetOf(static_cast<Family>(i));
  }
  return set;
}

// Rows that one item becomes: the largest where they differ. 0 for a decoder and where the shape is
// not known.
int64_t RowsOfItem(const Architecture& architecture);
// Rows in the layers that an item has beside those that it becomes.
int64_t ExtraRowsOfItem(const Architecture& architecture);

}  // namespace phalanx::job

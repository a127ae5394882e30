// worker/data/sequence.h: the rule that turns a text and its items into a sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/data/data_set.h"

namespace phalanx::data {

enum class ItemKind : int32_t { kImage, kSound };

inline constexpr absl::string_view kImageMark = "<image>";
inline constexpr absl::string_view kAudioMark = "<audio>";
// Stand for one row of an item; below every token.
inline constexpr int32_t kImageToken = -1, kSoundToken = -2;
inline bool IsRow(int32_t token) { return token < 0; }

struct Sequence {
  // The whole sequence, end token included, an item token for each row of an item.
  std::vector<int32_t> tokens;
  SampleShape shape;
  std::string corrupt_reason;  // if shape.corrupt
};

// What a sample has besides its text.
struct SampleParts {
  absl::Span<const ItemKind> items;  // by number, of kinds that the job has an encoder for
  int64_t target_rows = 0;
  std::string corrupt_reason;  // what is already known to be wrong; empty: nothing
};

// See data_set.h for the rules.
Sequence MakeSequence(absl::string_view text, const SampleParts& parts, const DataSetSpec& spec,
                      const Tokenizer& tokenizer);

}  // namespace phalanx::data

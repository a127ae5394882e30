// worker/data/sequence.h: the rule that turns a text and its items into a sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/data/data_set.h"

namespace phalanx::data {

inline constexpr absl::string_view kImageMark = "<image>";
inline constexpr absl::string_view kAudioMark = "<audio>";
// Stands for one row of an item in an encoder; below every token.
constexpr int32_t RowToken(int32_t encoder) { return -1 - encoder; }
constexpr bool IsRow(int32_t token) { return token < 0; }
constexpr int32_t EncoderOfRow(int32_t token) { return -1 - token; }

struct Sequence {
  // The whole sequence, end token included, an item token for each row of an item.
  std::vector<int32_t> tokens;
  SampleShape shape;
  std::vector<ItemRows> rows;  // as Index::rows
  std::string corrupt_reason;  // if shape.corrupt
};

// What a sample has besides its text.
struct SampleParts {
  absl::Span<const ItemKind> items;  // by number, of kinds that the job has an encoder for
  absl::Span<const ItemRows> rows;   // of these, as Index::rows
  int64_t target_rows = 0;
  std::string corrupt_reason;  // what is already known to be wrong; empty: nothing
};

bool ReadsKind(const DataSetSpec& spec, ItemKind kind);
// What items of the given kinds become, as Index::rows: the one place that knows.
std::vector<ItemRows> RowsOfItems(absl::Span<const ItemKind> items, const DataSetSpec& spec);
// What tells encoders apart as far as sequences go, for digests.
std::string TextOf(absl::Span<const Encoder> encoders);

// See data_set.h for the rules.
Sequence MakeSequence(absl::string_view text, const SampleParts& parts, const DataSetSpec& spec,
                      const Tokenizer& tokenizer);

}  // namespace phalanx::data

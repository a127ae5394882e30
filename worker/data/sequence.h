// worker/data/sequence.h: the rule that turns a text and a count of images into a sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/data/data_set.h"

namespace phalanx::data {

inline constexpr absl::string_view kImageMark = "<image>";
inline constexpr absl::string_view kAudioMark = "<audio>";
inline constexpr int32_t kItemToken = -1;  // stands for one row of an item

struct Sequence {
  // The whole sequence, end token included, a kItemToken for each row of an item.
  std::vector<int32_t> tokens;
  SampleShape shape;
  std::string corrupt_reason;  // if shape.corrupt
};

// `corrupt_reason` is what is already known to be wrong with the sample; empty: nothing. See
// data_set.h for the rules.
Sequence MakeSequence(absl::string_view text, int32_t images, const DataSetSpec& spec,
                      const Tokenizer& tokenizer, std::string corrupt_reason);

}  // namespace phalanx::data

#include "worker/data/sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace phalanx::data {
namespace {

// A text file's byte order mark and last line ends are none of its text.
absl::string_view Trimmed(absl::string_view text) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  while (absl::EndsWith(text, "\n") || absl::EndsWith(text, "\r")) text.remove_suffix(1);
  return text;
}

std::string Plural(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// Empty: the sample is as it should be.
std::string Fault(absl::string_view text, int64_t marks, int64_t images, const DataSetSpec& spec) {
  if (absl::StrContains(text, kAudioMark)) return "has an <audio> mark; only images are read";
  if (images > spec.items_max) {
    return absl::StrCat("has ", Plural(images, "image"), "; must have at most items_max (",
                        spec.items_max, ")");
  }
  if (marks > 0 && marks != images) {
    return absl::StrCat("has ", Plural(marks, "<image> mark"), " and ", Plural(images, "image"));
  }
  if (spec.context > 0 && images * spec.image_rows > spec.context) {
    return absl::StrCat("has ", Plural(images, "image"), " of ", spec.image_rows,
                        " rows; must fit the context (", spec.context, ")");
  }
  return "";
}

// Takes text tokens away from the end until `length_max` is kept; rows stay.
void Cut(std::vector<int32_t>& tokens, size_t length_max) {
  if (tokens.size() <= length_max) return;
  size_t excess = tokens.size() - length_max;
  size_t to = tokens.size();
  for (size_t from = tokens.size(); from-- > 0;) {
    if (excess > 0 && tokens[from] != kItemToken) {
      --excess;
    } else {
      tokens[--to] = tokens[from];
    }
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(to));
}

}  // namespace

Sequence MakeSequence(absl::string_view text, int32_t images, const DataSetSpec& spec,
                      const Tokenizer& tokenizer, std::string corrupt_reason) {
  text = Trimmed(text);
  const std::vector<absl::string_view> parts = absl::StrSplit(text, kImageMark);
  const int64_t marks = static_cast<int64_t>(parts.size()) - 1;
  Sequence sequence;
  sequence.corrupt_reason = std::move(corrupt_reason);
  const bool text_only = spec.image_rows == 0;
  if (sequence.corrupt_reason.empty()) {
    sequence.corrupt_reason =
        text_only ? Fault(text, 0, 0, spec) : Fault(text, marks, images, spec);
  }
  SampleShape& shape = sequence.shape;
  shape.corrupt = !sequence.corrupt_reason.empty();
  shape.images = shape.corrupt || text_only ? 0 : images;

  std::vector<int32_t>& tokens = sequence.tokens;
  const size_t rows = static_cast<size_t>(spec.image_rows);
  if (marks == 0) tokens.insert(tokens.end(), static_cast<size_t>(shape.images) * rows, kItemToken);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && shape.images > 0) tokens.insert(tokens.end(), rows, kItemToken);
    const std::vector<int32_t> pieces = tokenizer.Encode(parts[i]);
    tokens.insert(tokens.end(), pieces.begin(), pieces.end());
  }
  if (spec.context > 0) Cut(tokens, static_cast<size_t>(spec.context));
  tokens.push_back(tokenizer.end_token());
  if (tokens.size() < 2) tokens.push_back(tokenizer.end_token());

  shape.positions = static_cast<int32_t>(tokens.size() - 1);
  if (!shape.corrupt) {
    const auto after = std::find(tokens.rbegin(), tokens.rend(), kItemToken);
    const auto text_tokens = static_cast<int32_t>(after - tokens.rbegin());
    shape.counted = std::min(text_tokens, shape.positions);
  }
  return sequence;
}

}  // namespace phalanx::data

#include "worker/data/sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace phalanx::data {
namespace {

// A text file's byte order mark and last line ends are none of its text.
absl::string_view Trimmed(absl::string_view text) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  while (absl::EndsWith(text, "\n") || absl::EndsWith(text, "\r")) text.remove_suffix(1);
  return text;
}

// A text cut at its marks: texts[0], marks[0], texts[1], ...
struct MarkedText {
  std::vector<absl::string_view> texts;
  std::vector<ItemKind> marks;
};

MarkedText CutAtMarks(absl::string_view text) {
  MarkedText cut;
  while (true) {
    const size_t image = text.find(kImageMark), sound = text.find(kAudioMark);
    const size_t mark = std::min(image, sound);
    cut.texts.push_back(text.substr(0, mark));
    if (mark == absl::string_view::npos) return cut;
    cut.marks.push_back(mark == image ? ItemKind::kImage : ItemKind::kSound);
    text.remove_prefix(mark + (mark == image ? kImageMark : kAudioMark).size());
  }
}

int64_t RowsOf(ItemKind kind, const DataSetSpec& spec) {
  return kind == ItemKind::kImage ? spec.image_rows : spec.audio_rows;
}

int64_t Count(absl::Span<const ItemKind> kinds, ItemKind kind) {
  return std::count(kinds.begin(), kinds.end(), kind);
}

std::string Plural(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// "2 images", "1 image and 2 sounds"; of kinds that the job reads.
std::string Items(int64_t images, int64_t sounds, const DataSetSpec& spec) {
  if (spec.audio_rows == 0) return Plural(images, "image");
  if (spec.image_rows == 0) return Plural(sounds, "sound");
  return absl::StrCat(Plural(images, "image"), " and ", Plural(sounds, "sound"));
}

// Empty: the sample is as it should be.
std::string Fault(const MarkedText& text, absl::Span<const ItemKind> items,
                  const DataSetSpec& spec) {
  const int64_t images = Count(items, ItemKind::kImage), sounds = Count(items, ItemKind::kSound);
  if (images + sounds > spec.items_max) {
    return absl::StrCat("has ", Items(images, sounds, spec), "; must have at most items_max (",
                        spec.items_max, ")");
  }
  const int64_t image_marks = Count(text.marks, ItemKind::kImage);
  if (spec.image_rows > 0 && image_marks > 0 && image_marks != images) {
    return absl::StrCat("has ", Plural(image_marks, "<image> mark"), " and ",
                        Plural(images, "image"));
  }
  const int64_t sound_marks = Count(text.marks, ItemKind::kSound);
  if (spec.audio_rows > 0 && sound_marks > 0 && sound_marks != sounds) {
    return absl::StrCat("has ", Plural(sound_marks, "<audio> mark"), " and ",
                        Plural(sounds, "sound"));
  }
  const int64_t rows = images * spec.image_rows + sounds * spec.audio_rows;
  if (spec.context > 0 && rows > spec.context) {
    return absl::StrCat("has ", Items(images, sounds, spec), ", ", rows,
                        " rows together; must fit the context (", spec.context, ")");
  }
  return "";
}

// Takes text tokens away from the end until `length_max` is kept; rows stay.
void Cut(std::vector<int32_t>& tokens, size_t length_max) {
  if (tokens.size() <= length_max) return;
  size_t excess = tokens.size() - length_max;
  size_t to = tokens.size();
  for (size_t from = tokens.size(); from-- > 0;) {
    if (excess > 0 && !IsRow(tokens[from])) {
      --excess;
    } else {
      tokens[--to] = tokens[from];
    }
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(to));
}

// Rows and pieces in order, cut to the context, without the end token.
std::vector<int32_t> Tokens(const MarkedText& text, absl::Span<const ItemKind> items,
                            const DataSetSpec& spec, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  const auto add = [&](ItemKind kind) {
    tokens.insert(tokens.end(), static_cast<size_t>(RowsOf(kind, spec)),
                  kind == ItemKind::kImage ? kImageToken : kSoundToken);
  };
  for (const ItemKind kind : items) {
    if (Count(text.marks, kind) == 0) add(kind);
  }
  for (size_t i = 0; i < text.texts.size(); ++i) {
    if (i > 0 && Count(items, text.marks[i - 1]) > 0) add(text.marks[i - 1]);
    const std::vector<int32_t> pieces = tokenizer.Encode(text.texts[i]);
    tokens.insert(tokens.end(), pieces.begin(), pieces.end());
  }
  if (spec.context > 0) Cut(tokens, static_cast<size_t>(spec.context));
  return tokens;
}

}  // namespace

Sequence MakeSequence(absl::string_view text, const SampleParts& parts, const DataSetSpec& spec,
                      const Tokenizer& tokenizer) {
  const MarkedText marked = CutAtMarks(Trimmed(text));
  Sequence sequence;
  sequence.corrupt_reason = parts.corrupt_reason;
  if (sequence.corrupt_reason.empty()) sequence.corrupt_reason = Fault(marked, parts.items, spec);
  SampleShape& shape = sequence.shape;
  shape.corrupt = !sequence.corrupt_reason.empty();
  const absl::Span<const ItemKind> items =
      shape.corrupt ? absl::Span<const ItemKind>() : parts.items;
  shape.images = static_cast<int32_t>(Count(items, ItemKind::kImage));
  shape.sounds = static_cast<int32_t>(Count(items, ItemKind::kSound));

  std::vector<int32_t>& tokens = sequence.tokens;
  tokens = Tokens(marked, items, spec, tokenizer);
  tokens.push_back(tokenizer.end_token());
  if (tokens.size() < 2) tokens.push_back(tokenizer.end_token());
  shape.positions = static_cast<int32_t>(tokens.size() - 1);
  if (shape.corrupt) return sequence;

  if (parts.target_rows > shape.positions) {
    SampleParts known = parts;
    known.corrupt_reason =
        absl::StrCat("has a target of ", Plural(parts.target_rows, "row"),
                     "; must have at most as many as input positions (", shape.positions, ")");
    return MakeSequence(text, known, spec, tokenizer);
  }
  shape.target_rows = static_cast<int32_t>(parts.target_rows);
  const auto after = std::find_if(tokens.rbegin(), tokens.rend(), IsRow);
  shape.counted = std::min(static_cast<int32_t>(after - tokens.rbegin()), shape.positions);
  return sequence;
}

}  // namespace phalanx::data

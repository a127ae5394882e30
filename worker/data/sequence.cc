#include "worker/data/sequence.h"

#include <algorithm>
#include <array>
#include <cstddef>
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

int64_t Count(absl::Span<const ItemKind> kinds, ItemKind kind) {
  return std::count(kinds.begin(), kinds.end(), kind);
}

std::string Plural(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// "2 images", "1 image and 2 sounds"; of kinds that the job reads.
std::string Items(int64_t images, int64_t sounds, const DataSetSpec& spec) {
  if (!ReadsKind(spec, ItemKind::kSound)) return Plural(images, "image");
  if (!ReadsKind(spec, ItemKind::kImage)) return Plural(sounds, "sound");
  return absl::StrCat(Plural(images, "image"), " and ", Plural(sounds, "sound"));
}

// Empty: the sample is as it should be.
std::string Fault(const MarkedText& text, const SampleParts& parts, const DataSetSpec& spec) {
  const absl::Span<const ItemKind> items = parts.items;
  const int64_t images = Count(items, ItemKind::kImage), sounds = Count(items, ItemKind::kSound);
  if (images + sounds > spec.items_max) {
    return absl::StrCat("has ", Items(images, sounds, spec), "; must have at most items_max (",
                        spec.items_max, ")");
  }
  const int64_t image_marks = Count(text.marks, ItemKind::kImage);
  if (ReadsKind(spec, ItemKind::kImage) && image_marks > 0 && image_marks != images) {
    return absl::StrCat("has ", Plural(image_marks, "<image> mark"), " and ",
                        Plural(images, "image"));
  }
  const int64_t sound_marks = Count(text.marks, ItemKind::kSound);
  if (ReadsKind(spec, ItemKind::kSound) && sound_marks > 0 && sound_marks != sounds) {
    return absl::StrCat("has ", Plural(sound_marks, "<audio> mark"), " and ",
                        Plural(sounds, "sound"));
  }
  int64_t rows = 0;
  for (const ItemRows& item : parts.rows) rows += item.rows;
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

// The rows of each item, as row tokens.
std::vector<std::vector<int32_t>> TokensOfItems(const SampleParts& parts, const DataSetSpec& spec) {
  std::vector<std::vector<int32_t>> tokens;
  size_t next = 0;
  for (const ItemKind kind : parts.items) {
    std::vector<int32_t>& item = tokens.emplace_back();
    for (const Encoder& encoder : spec.encoders) {
      if (encoder.kind != kind) continue;
      const ItemRows& rows = parts.rows[next++];
      item.insert(item.end(), static_cast<size_t>(rows.rows), RowToken(rows.encoder));
    }
  }
  return tokens;
}

// Rows and pieces in order, cut to the context, without the end token.
std::vector<int32_t> Tokens(const MarkedText& text, const SampleParts& parts,
                            const DataSetSpec& spec, const Tokenizer& tokenizer) {
  const std::vector<std::vector<int32_t>> items = TokensOfItems(parts, spec);
  std::vector<int32_t> tokens;
  std::array<std::vector<size_t>, 2> marked;  // by kind: items that wait for their mark
  for (size_t i = items.size(); i-- > 0;) {
    if (Count(text.marks, parts.items[i]) > 0) {
      marked[static_cast<size_t>(parts.items[i])].push_back(i);
    }
  }
  const auto add = [&](const std::vector<int32_t>& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  for (size_t i = 0; i < items.size(); ++i) {
    if (Count(text.marks, parts.items[i]) == 0) add(items[i]);
  }
  for (size_t i = 0; i < text.texts.size(); ++i) {
    if (i > 0) {
      // A kind that the job does not read leaves its marks without items.
      std::vector<size_t>& waiting = marked[static_cast<size_t>(text.marks[i - 1])];
      if (!waiting.empty()) {
        add(items[waiting.back()]);
        waiting.pop_back();
      }
    }
    add(tokenizer.Encode(text.texts[i]));
  }
  if (spec.context > 0) Cut(tokens, static_cast<size_t>(spec.context));
  return tokens;
}

}  // namespace

bool ReadsKind(const DataSetSpec& spec, ItemKind kind) {
  return std::any_of(spec.encoders.begin(), spec.encoders.end(),
                     [kind](const Encoder& encoder) { return encoder.kind == kind; });
}

std::vector<ItemRows> RowsOfItems(absl::Span<const ItemKind> items, const DataSetSpec& spec) {
  std::vector<ItemRows> rows;
  for (const ItemKind kind : items) {
    for (size_t i = 0; i < spec.encoders.size(); ++i) {
      if (spec.encoders[i].kind != kind) continue;
      rows.push_back({static_cast<int32_t>(i), static_cast<int32_t>(spec.encoders[i].rows)});
    }
  }
  return rows;
}

std::string TextOf(absl::Span<const Encoder> encoders) {
  std::string text;
  for (const Encoder& encoder : encoders) {
    absl::StrAppend(&text, encoder.kind == ItemKind::kImage ? "i" : "s", encoder.rows, ";");
  }
  return text;
}

Sequence MakeSequence(absl::string_view text, const SampleParts& parts, const DataSetSpec& spec,
                      const Tokenizer& tokenizer) {
  const MarkedText marked = CutAtMarks(Trimmed(text));
  Sequence sequence;
  sequence.corrupt_reason = parts.corrupt_reason;
  if (sequence.corrupt_reason.empty()) sequence.corrupt_reason = Fault(marked, parts, spec);
  SampleShape& shape = sequence.shape;
  shape.corrupt = !sequence.corrupt_reason.empty();
  const SampleParts used = shape.corrupt ? SampleParts() : parts;
  shape.images = static_cast<int32_t>(Count(used.items, ItemKind::kImage));
  shape.sounds = static_cast<int32_t>(Count(used.items, ItemKind::kSound));
  sequence.rows.assign(used.rows.begin(), used.rows.end());

  std::vector<int32_t>& tokens = sequence.tokens;
  tokens = Tokens(marked, used, spec, tokenizer);
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

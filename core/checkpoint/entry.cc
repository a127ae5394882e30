#include "core/checkpoint/entry.h"

#include <algorithm>
#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace phalanx::checkpoint {
namespace {

constexpr std::array<absl::string_view, kKinds> kKindNames = {"master", "m", "v", "weight"};
// Beyond any tensor, while the product of two with an entry's size added stays within 64 bits.
constexpr int64_t kPlaceMax = int64_t{1} << 31;

// What is behind the last `mark` of `text`, which is cut off there; nullopt: no such mark.
std::optional<absl::string_view> CutBehind(char mark, absl::string_view* text) {
  const size_t at = text->rfind(mark);
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view behind = text->substr(at + 1);
  *text = text->substr(0, at);
  return behind;
}

}  // namespace

Rectangle Intersection(const Rectangle& a, const Rectangle& b) {
  Rectangle both{.row = std::max(a.row, b.row), .col = std::max(a.col, b.col)};
  both.rows = std::max<int64_t>(0, std::min(a.row_end(), b.row_end()) - both.row);
  both.cols = std::max<int64_t>(0, std::min(a.col_end(), b.col_end()) - both.col);
  return both;
}

absl::string_view ToString(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

int64_t BytesOf(DType dtype) { return dtype == DType::kBf16 ? 2 : dtype == DType::kF32 ? 4 : 8; }

absl::string_view ToString(DType dtype) {
  return dtype == DType::kBf16 ? "BF16" : dtype == DType::kF32 ? "F32" : "F64";
}

std::string NameOf(const Entry& entry) {
  return absl::StrCat(entry.module, "/", entry.tensor, "@", entry.where.row, ",", entry.where.col,
                      entry.transposed ? "^T#" : "#", ToString(entry.kind));
}

std::optional<Entry> ParseName(absl::string_view name) {
  absl::string_view rest = name;
  const auto kind = CutBehind('#', &rest);
  const bool transposed = absl::ConsumeSuffix(&rest, "^T");
  const auto col = CutBehind(',', &rest), row = CutBehind('@', &rest);
  const size_t slash = rest.find('/');
  if (!kind.has_value() || !col.has_value() || !row.has_value() || slash == rest.npos) {
    return std::nullopt;
  }
  Entry entry{.module = std::string(rest.substr(0, slash)),
              .tensor = std::string(rest.substr(slash + 1)),
              .transposed = transposed};
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), *kind);
  if (found == kKindNames.end() || entry.module.empty() || entry.tensor.empty() ||
      !absl::SimpleAtoi(*row, &entry.where.row) || !absl::SimpleAtoi(*col, &entry.where.col) ||
      entry.where.row < 0 || entry.where.row > kPlaceMax || entry.where.col < 0 ||
      entry.where.col > kPlaceMax) {
    return std::nullopt;
  }
  entry.kind = static_cast<Kind>(found - kKindNames.begin());
  if (NameOf(entry) != name) return std::nullopt;
  return entry;
}

int64_t PlaceEntries(absl::Span<Entry> entries) {
  int64_t offset = 0;
  for (Entry& entry : entries) {
    entry.offset = offset;
    offset += entry.bytes();
  }
  return offset;
}

}  // namespace phalanx::checkpoint

#include "worker/data/npy.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/data/file.h"

namespace phalanx::data {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr absl::string_view kNpyMagic = "\x93NUMPY";

absl::Status NoArray() { return absl::InvalidArgumentError("is no NPY file"); }

// Unsigned little-endian number of `count` bytes at `at`.
size_t NumberAt(absl::string_view bytes, size_t at, size_t count) {
  size_t number = 0;
  for (size_t i = count; i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[at + i]);
  return number;
}

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } to its values as written. What stands
// in quotes or parentheses belongs together. Empty: no such dictionary.
std::map<std::string, std::string> ReadDictionary(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&text, "{") || !absl::ConsumeSuffix(&text, "}")) return {};
  std::map<std::string, std::string> values;
  while (!(text = absl::StripAsciiWhitespace(text)).empty()) {
    if (!absl::ConsumePrefix(&text, "'")) return {};
    const size_t quote = text.find("':");
    if (quote == absl::string_view::npos) return {};
    const absl::string_view key = text.substr(0, quote);
    text = absl::StripLeadingAsciiWhitespace(text.substr(quote + 2));
    size_t end = text.find(',');
    if (absl::StartsWith(text, "(")) end = text.find(',', std::min(text.find(')'), text.size()));
    values[std::string(key)] = std::string(absl::StripAsciiWhitespace(text.substr(0, end)));
    text = end == absl::string_view::npos ? "" : text.substr(end + 1);
  }
  return values;
}

// "(3, 4)" to rows and columns; false for another number of axes or none at all.
bool ReadShape(absl::string_view text, NpyShape& shape) {
  if (!absl::ConsumePrefix(&text, "(") || !absl::ConsumeSuffix(&text, ")")) return false;
  const std::vector<absl::string_view> axes = absl::StrSplit(text, ',');
  constexpr int64_t kAxisMax = std::numeric_limits<int32_t>::max();
  return axes.size() == 2 && absl::SimpleAtoi(axes[0], &shape.rows) &&
         absl::SimpleAtoi(axes[1], &shape.columns) && shape.rows >= 0 && shape.columns >= 0 &&
         shape.rows <= kAxisMax && shape.columns <= kAxisMax;
}

}  // namespace

absl::StatusOr<NpyShape> ReadNpyHeader(absl::string_view bytes, int64_t file_bytes) {
  if (!absl::StartsWith(bytes, kNpyMagic) || bytes.size() < 12) return NoArray();
  const size_t length_bytes = bytes[6] == 1 ? 2 : 4;
  if (bytes[6] < 1 || bytes[6] > 3) return NoArray();
  const size_t begin = 8 + length_bytes, length = NumberAt(bytes, 8, length_bytes);
  if (length > bytes.size() - begin) return NoArray();
  const auto values = ReadDictionary(bytes.substr(begin, length));
  if (!values.contains("descr") || !values.contains("fortran_order") || !values.contains("shape")) {
    return NoArray();
  }
  NpyShape shape{.header_bytes = static_cast<int64_t>(begin + length)};
  const std::string& type = values.at("descr");
  if (type != "'<f4'" && type != "'<f8'") {
    return absl::InvalidArgumentError(
        absl::StrCat("has values of type ", Printable(type), "; must be '<f4' or '<f8'"));
  }
  shape.value_bytes = type == "'<f4'" ? 4 : 8;
  if (values.at("fortran_order") != "False") {
    return absl::InvalidArgumentError("is in Fortran order; must be in C order");
  }
  if (!ReadShape(values.at("shape"), shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat("has the shape ", Printable(values.at("shape")), "; must be (rows, hidden)"));
  }
  // Each axis is below 2^31, so nothing overflows before the first comparison.
  const int64_t room = (file_bytes - shape.header_bytes) / shape.value_bytes;
  if (shape.rows * shape.columns > room ||
      shape.values_bytes() + shape.header_bytes != file_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("has ", file_bytes - shape.header_bytes,
                                                   " bytes of values; its shape ",
                                                   values.at("shape"), " has another number"));
  }
  return shape;
}

bool ReadNpyValues(absl::string_view bytes, int64_t value_bytes, std::vector<float>& to) {
  const size_t width = static_cast<size_t>(value_bytes);
  to.resize(bytes.size() / width);
  bool finite = true;
  for (size_t i = 0; i < to.size(); ++i) {
    if (width == 4) {
      std::memcpy(&to[i], bytes.data() + 4 * i, 4);
    } else {
      double value = 0;
      std::memcpy(&value, bytes.data() + 8 * i, 8);
      to[i] = static_cast<float>(value);
    }
    finite = finite && std::isfinite(to[i]);
  }
  return finite;
}

}  // namespace phalanx::data

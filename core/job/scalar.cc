#include "core/job/scalar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace phalanx::job {
namespace {

bool AllDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// The alternatives between one pair of braces.
absl::StatusOr<std::vector<std::string>> Alternatives(absl::string_view inside) {
  const size_t dots = inside.find("..");
  if (dots == absl::string_view::npos) {
    const std::vector<std::string> words = absl::StrSplit(inside, ',');
    if (words.size() < 2) {
      return absl::InvalidArgumentError(
          "braces must hold a range {000..003} or alternatives {a,b}");
    }
    return words;
  }
  const absl::string_view low = inside.substr(0, dots), high = inside.substr(dots + 2);
  int64_t first = 0, last = 0;
  if (!AllDigits(low) || !AllDigits(high) || !absl::SimpleAtoi(low, &first) ||
      !absl::SimpleAtoi(high, &last)) {
    return absl::InvalidArgumentError("both ends of a range in braces must be numbers");
  }
  if (last < first) return absl::InvalidArgumentError("a range in braces must not run backwards");
  if (last - first >= kExpansionMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern may stand for at most ", kExpansionMax, " names"));
  }
  const int width = static_cast<int>(std::min<size_t>(std::max(low.size(), high.size()), 32));
  std::vector<std::string> names;
  for (int64_t i = first; i <= last; ++i) names.push_back(absl::StrFormat("%0*d", width, i));
  return names;
}

absl::Status TooLong() {
  return absl::InvalidArgumentError(
      absl::StrCat("a pattern may stand for at most ", kExpansionBytesMax, " bytes of names"));
}

// Insertions, deletions, changes and swaps of neighbours; names are short.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> distance(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) distance[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) distance[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1,
                                 distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

}  // namespace

std::optional<int64_t> ParseInteger(absl::string_view text) {
  absl::string_view digits = text;
  if (absl::StartsWith(digits, "-") || absl::StartsWith(digits, "+")) digits.remove_prefix(1);
  int64_t value = 0;
  if (!AllDigits(digits) || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

std::optional<uint64_t> ParseUnsigned(absl::string_view text) {
  uint64_t value = 0;
  if (!AllDigits(text) || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseSize(absl::string_view text) {
  constexpr std::array<absl::string_view, 4> kSuffixes = {"Ki", "Mi", "Gi", "Ti"};
  int64_t factor = 1;
  for (absl::string_view suffix : kSuffixes) {
    factor <<= 10;
    if (!absl::EndsWith(text, suffix)) continue;
    const std::optional<int64_t> count = ParseInteger(text.substr(0, text.size() - 2));
    if (!count.has_value() || *count > std::numeric_limits<int64_t>::max() / factor ||
        *count < std::numeric_limits<int64_t>::min() / factor) {
      return std::nullopt;
    }
    return *count * factor;
  }
  return ParseInteger(text);
}

std::optional<double> ParseNumber(absl::string_view text) {
  if (text == ".inf" || text == "+.inf") return std::numeric_limits<double>::infinity();
  if (text == "-.inf") return -std::numeric_limits<double>::infinity();
  if (text == ".nan") return std::numeric_limits<double>::quiet_NaN();
  double value = 0;
  // SimpleAtod also reads "inf" and "nan", which in YAML are words, and trims spaces.
  if (text.find_first_not_of("0123456789+-.eE") != absl::string_view::npos ||
      text.find_first_of("0123456789") == absl::string_view::npos ||
      !absl::SimpleAtod(text, &value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<bool> ParseBoolean(absl::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

std::optional<absl::Duration> ParseDuration(absl::string_view text) {
  absl::Duration value;
  if (text.empty() || text == "0" || !absl::ascii_isdigit(static_cast<unsigned char>(text[0])) ||
      !absl::ParseDuration(text, &value)) {
    return std::nullopt;
  }
  return value;
}

std::string FormatNumber(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  if (value == std::floor(value) && std::abs(value) < 1e9) {
    return absl::StrCat(static_cast<int64_t>(value));
  }
  for (int digits = 1; digits <= 17; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    double back = 0;
    if (absl::SimpleAtod(text, &back) && back == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string FormatDuration(absl::Duration value) { return absl::FormatDuration(value); }

bool NeedsQuotes(absl::string_view text) {
  return text.empty() || text == "~" || absl::EqualsIgnoreCase(text, "null") ||
         absl::EqualsIgnoreCase(text, "true") || absl::EqualsIgnoreCase(text, "false") ||
         ParseNumber(text).has_value();
}

absl::StatusOr<std::vector<std::string>> ExpandBraces(absl::string_view pattern) {
  if (pattern.size() > kPatternMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern may be at most ", kPatternMax, " bytes long"));
  }
  std::vector<std::string> names = {""};
  size_t bytes = 0;  // of all names
  while (true) {
    const size_t brace = pattern.find_first_of("{}");
    const absl::string_view text = pattern.substr(0, brace);
    bytes += names.size() * text.size();
    if (bytes > kExpansionBytesMax) return TooLong();
    for (std::string& name : names) absl::StrAppend(&name, text);
    if (brace == absl::string_view::npos) return names;
    pattern.remove_prefix(brace);
    const size_t end = pattern.find_first_of("{}", 1);
    if (pattern[0] == '}' || end == absl::string_view::npos || pattern[end] == '{') {
      return absl::InvalidArgumentError("braces must be closed and may not be nested");
    }
    const absl::StatusOr<std::vector<std::string>> words = Alternatives(pattern.substr(1, end - 1));
    if (!words.ok()) return words.status();
    pattern.remove_prefix(end + 1);
    if (names.size() * words->size() > static_cast<size_t>(kExpansionMax)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a pattern may stand for at most ", kExpansionMax, " names"));
    }
    bytes *= words->size();
    for (const std::string& word : *words) bytes += names.size() * word.size();
    if (bytes > kExpansionBytesMax) return TooLong();
    std::vector<std::string> product;
    product.reserve(names.size() * words->size());
    for (const std::string& name : names) {
      for (const std::string& word : *words) product.push_back(absl::StrCat(name, word));
    }
    names = std::move(product);
  }
}

std::optional<absl::string_view> NearestName(absl::string_view word,
                                             absl::Span<const absl::string_view> candidates) {
  if (word.size() > 64) return std::nullopt;
  std::optional<absl::string_view> nearest;
  size_t best = std::max<size_t>(1, word.size() / 3) + 1;
  for (absl::string_view candidate : candidates) {
    const bool begins = word.size() >= 3 &&
                        (absl::StartsWith(candidate, word) || absl::StartsWith(word, candidate));
    const size_t distance =
        begins ? std::min<size_t>(1, EditDistance(word, candidate)) : EditDistance(word, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace phalanx::job

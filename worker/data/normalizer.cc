#include "worker/data/normalizer.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace phalanx::data {
namespace {

constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";

bool IsTrail(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// A unit of the trie, in the format of the Darts-clone library.
bool HasLeaf(uint32_t unit) { return (unit >> 8) & 1; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

size_t ValidCharacterBytes(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  if (text.size() >= 2 && (byte(0) & 0xE0) == 0xC0 && IsTrail(text[1])) {
    return byte(0) >= 0xC2 ? 2 : 0;
  }
  if (text.size() >= 3 && (byte(0) & 0xF0) == 0xE0 && IsTrail(text[1]) && IsTrail(text[2])) {
    const uint32_t code = (byte(0) & 0x0Fu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    return code >= 0x800 && (code < 0xD800 || code > 0xDFFF) ? 3 : 0;
  }
  if (text.size() >= 4 && (byte(0) & 0xF8) == 0xF0 && IsTrail(text[1]) && IsTrail(text[2]) &&
      IsTrail(text[3])) {
    const uint32_t code = (byte(0) & 0x07u) << 18 | (byte(1) & 0x3Fu) << 12 |
                          (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
    return code >= 0x10000 && code <= 0x10FFFF ? 4 : 0;
  }
  return 0;
}

size_t CharacterBytes(absl::string_view text) {
  static constexpr char kBytes[17] = "\1\1\1\1\1\1\1\1\1\1\1\1\2\2\3\4";
  const size_t bytes = static_cast<size_t>(kBytes[static_cast<unsigned char>(text[0]) >> 4]);
  return std::min(bytes, text.size());
}

absl::StatusOr<Normalizer> Normalizer::Create(absl::string_view table,
                                              std::vector<std::string> verbatim,
                                              const NormalizerOptions& options) {
  Normalizer normalizer;
  normalizer.options_ = options;
  normalizer.verbatim_ = std::move(verbatim);
  // The first that matches is the longest.
  std::sort(normalizer.verbatim_.begin(), normalizer.verbatim_.end(),
            [](const std::string& a, const std::string& b) {
              return a.size() != b.size() ? a.size() > b.size() : a < b;
            });
  if (table.empty()) return normalizer;
  uint32_t trie_bytes = 0;
  if (table.size() <= sizeof(trie_bytes)) {
    return absl::InvalidArgumentError("its normalisation table is cut short");
  }
  std::memcpy(&trie_bytes, table.data(), sizeof(trie_bytes));
  table.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes > table.size() || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0) {
    return absl::InvalidArgumentError("its normalisation table is cut short");
  }
  normalizer.trie_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(normalizer.trie_.data(), table.data(), trie_bytes);
  table.remove_prefix(trie_bytes);
  normalizer.replacements_.assign(table.data(), table.size());
  if (normalizer.replacements_.empty() || normalizer.replacements_.back() != '\0') {
    normalizer.replacements_.push_back('\0');
  }
  return normalizer;
}

size_t Normalizer::VerbatimBytes(absl::string_view text) const {
  for (const std::string& string : verbatim_) {
    if (absl::StartsWith(text, string)) return string.size();
  }
  return 0;
}

std::pair<absl::string_view, size_t> Normalizer::NormalizePrefix(absl::string_view text) const {
  if (const size_t bytes = VerbatimBytes(text); bytes > 0) return {text.substr(0, bytes), bytes};
  size_t longest = 0;
  uint32_t value = 0;
  if (!trie_.empty()) {
    size_t node = Offset(trie_[0]);
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t label = static_cast<unsigned char>(text[i]);
      node ^= label;
      if (node >= trie_.size() || Label(trie_[node]) != label) break;
      const bool has_leaf = HasLeaf(trie_[node]);
      node ^= Offset(trie_[node]);
      if (has_leaf && node < trie_.size()) {
        longest = i + 1;
        value = Value(trie_[node]);
      }
    }
  }
  if (longest > 0 && value < replacements_.size()) {
    return {absl::string_view(replacements_.data() + value), longest};  // the last byte is a zero
  }
  if (const size_t bytes = ValidCharacterBytes(text); bytes > 0)
    return {text.substr(0, bytes), bytes};
  return {kReplacementCharacter, 1};
}

std::string Normalizer::Normalize(absl::string_view text) const {
  if (options_.remove_extra_whitespaces) {
    while (!text.empty()) {
      const auto [form, bytes] = NormalizePrefix(text);
      if (form != " ") break;
      text.remove_prefix(bytes);
    }
  }
  std::string result;
  if (text.empty()) return result;
  const absl::string_view space = options_.escape_whitespaces ? kSpaceSymbol : " ";
  const auto append = [&](absl::string_view form) {
    for (const char c : form) {
      if (c == ' ') {
        result.append(space.data(), space.size());
      } else {
        result.push_back(c);
      }
    }
  };
  if (!options_.whitespace_as_suffix && options_.dummy_prefix) append(" ");
  bool after_space = options_.remove_extra_whitespaces;
  while (!text.empty()) {
    auto [form, bytes] = NormalizePrefix(text);
    while (after_space && absl::ConsumePrefix(&form, " ")) {
    }
    if (!form.empty()) {
      append(form);
      after_space = options_.remove_extra_whitespaces && absl::EndsWith(form, " ");
    }
    text.remove_prefix(bytes);
  }
  if (options_.remove_extra_whitespaces) {
    while (absl::EndsWith(result, space)) result.erase(result.size() - space.size());
  }
  if (options_.whitespace_as_suffix && options_.dummy_prefix) append(" ");
  return result;
}

}  // namespace phalanx::data

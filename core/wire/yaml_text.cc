#include "core/wire/yaml_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"
#include "core/base/violation.h"

namespace phalanx::wire {
namespace {

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Stand-ins are of Unicode's last private plane, where no text has anything.
constexpr uint32_t kStandIns = 0x10FF00;
constexpr uint32_t kOthers[] = {0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF};
constexpr uint32_t kStandInsEnd = kStandIns + 32 + std::size(kOthers);

// The stand-in of a character that libyaml takes for a line end (U+0085, U+2028, U+2029) or does
// not take; 0 for all others.
uint32_t StandInOf(uint32_t character) {
  if (character >= 0x80 && character < 0xA0) return kStandIns + character - 0x80;
  const auto* const found = std::find(std::begin(kOthers), std::end(kOthers), character);
  if (found == std::end(kOthers)) return 0;
  return kStandIns + 32 + static_cast<uint32_t>(found - std::begin(kOthers));
}

void AppendUtf8(uint32_t character, std::string& out) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (character < 0x80) return put(character);
  if (character < 0x800) {
    put(0xC0 | character >> 6);
  } else if (character < 0x10000) {
    put(0xE0 | character >> 12);
    put(0x80 | (character >> 6 & 0x3F));
  } else {
    put(0xF0 | character >> 18);
    put(0x80 | (character >> 12 & 0x3F));
    put(0x80 | (character >> 6 & 0x3F));
  }
  put(0x80 | (character & 0x3F));
}

bool IsControl(char c) {
  const auto u = static_cast<unsigned char>(c);
  return (u < 0x20 && c != '\t' && c != '\n' && c != '\r') || u == 0x7F;
}

struct Found {
  bool special = false;  // a character that needs a stand-in
  bool taken = false;    // a character that is a stand-in
};

absl::StatusOr<Found> CheckCharacters(absl::string_view text) {
  Found found;
  size_t line = 1, column = 1;
  for (size_t i = 0; i < text.size(); ++column) {
    if (IsControl(text[i])) return YamlFault("control characters are not allowed", line, column);
    if (static_cast<unsigned char>(text[i]) >= 0x80) {
      uint32_t character = 0;
      const size_t bytes = Utf8Bytes(text.substr(i), character);
      if (bytes == 0) return YamlFault("the document is not UTF-8", line, column);
      found.special = found.special || StandInOf(character) != 0;
      found.taken = found.taken || (character >= kStandIns && character < kStandInsEnd);
      i += bytes;
    } else if (text[i++] == '\n') {
      ++line;
      column = 0;
    }
  }
  return found;
}

std::string WithStandIns(absl::string_view text) {
  std::string out;
  out.reserve(text.size() + 64);
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = Utf8Bytes(text, character);
    const uint32_t other = StandInOf(character);
    AppendUtf8(other != 0 ? other : character, out);
    text.remove_prefix(bytes);
  }
  return out;
}

// Spaces for tabs of lines that have nothing else, or nothing but a comment, which libyaml refuses.
// Such lines are the same within quotes, but not within block scalars.
void SpaceStrayTabs(std::string& text) {
  if (!absl::StrContains(text, '\t') || text.find_first_of("|>") != std::string::npos) return;
  for (size_t line = 0; line < text.size();) {
    const size_t word = std::min(text.find_first_not_of("\t ", line), text.size());
    const bool bare = word == text.size() || absl::StrContains("\r\n#", text[word]);
    const auto at = [&text](size_t i) { return text.begin() + static_cast<std::ptrdiff_t>(i); };
    if (bare) std::replace(at(line), at(word), '\t', ' ');
    const size_t end = text.find('\n', word);
    line = end == std::string::npos ? text.size() : end + 1;
  }
}

}  // namespace

absl::Status YamlFault(absl::string_view rule, size_t line, size_t column) {
  std::string text(rule);
  if (line > 0) text = absl::StrCat("line ", line, ", column ", column, ": ", rule);
  return ViolationsStatus({{"", "", std::move(text), static_cast<int32_t>(line)}});
}

absl::StatusOr<YamlText> PrepareYaml(absl::string_view text, size_t bytes_max) {
  if (text.size() > bytes_max) {
    return YamlFault(absl::StrCat("the document has ", text.size(), " bytes; at most ", bytes_max,
                                  " are allowed"),
                     0, 0);
  }
  absl::ConsumePrefix(&text, kByteOrderMark);
  const absl::StatusOr<Found> found = CheckCharacters(text);
  if (!found.ok()) return found.status();
  if (found->special && found->taken) {
    return YamlFault("control characters and characters from U+10FF00 are not allowed together", 0,
                     0);
  }
  YamlText prepared;
  prepared.has_stand_ins = found->special;
  prepared.text = found->special ? WithStandIns(text) : std::string(text);
  SpaceStrayTabs(prepared.text);
  return prepared;
}

std::string WithoutStandIns(absl::string_view scalar) {
  std::string out;
  out.reserve(scalar.size());
  while (!scalar.empty()) {
    uint32_t character = 0;
    const size_t bytes = std::max<size_t>(Utf8Bytes(scalar, character), 1);
    if (character >= kStandIns && character < kStandInsEnd) {
      const uint32_t index = character - kStandIns;
      AppendUtf8(index < 32 ? 0x80 + index : kOthers[index - 32], out);
    } else {
      absl::StrAppend(&out, scalar.substr(0, bytes));
    }
    scalar.remove_prefix(bytes);
  }
  return out;
}

bool HasControl(absl::string_view text) { return std::any_of(text.begin(), text.end(), IsControl); }

bool IsPlainYaml(absl::string_view word, bool in_flow) {
  if (word.empty() || word == "~" || word == "null" || word == "Null" || word == "NULL") {
    return false;
  }
  const auto ends = [word](size_t i) { return i >= word.size() || word[i] == ' '; };
  if (word.front() == ' ' || word.back() == ' ' ||
      absl::StrContains(",[]{}#&*!|>'\"%@`", word.front())) {
    return false;
  }
  if (absl::StrContains("-?:", word.front()) && (ends(1) || (in_flow && word[0] != '-'))) {
    return false;
  }
  // Where a line begins these end or begin a document.
  if ((absl::StartsWith(word, "---") || absl::StartsWith(word, "...")) && ends(3)) return false;
  for (size_t i = 0; i < word.size();) {
    uint32_t character = 0;
    const size_t bytes = Utf8Bytes(word.substr(i), character);
    if (bytes == 0 || character < 0x20 || character == 0x7F || StandInOf(character) != 0) {
      return false;
    }
    if (in_flow && bytes == 1 && absl::StrContains(",?[]{}", word[i])) return false;
    if (word[i] == ':' && ends(i + 1)) return false;
    if (word[i] == '#' && word[i - 1] == ' ') return false;  // the first is none
    i += bytes;
  }
  return true;
}

std::string QuotedYaml(absl::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = Utf8Bytes(text, character);
    static constexpr absl::string_view kLetters = "\"\\\n\t\r\b\f", kWritten = "\"\\ntrbf";
    const size_t letter = bytes == 1 ? kLetters.find(text[0]) : absl::string_view::npos;
    if (bytes == 0) {
      AppendUtf8(0xFFFD, out);
    } else if (letter != absl::string_view::npos) {
      out.push_back('\\');
      out.push_back(kWritten[letter]);
    } else if (character < 0x20 || (character >= 0x7F && character <= 0xA0)) {
      absl::StrAppendFormat(&out, "\\x%02x", character);
    } else if (StandInOf(character) != 0) {
      absl::StrAppendFormat(&out, "\\u%04x", character);
    } else {
      absl::StrAppend(&out, text.substr(0, bytes));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  out.push_back('"');
  return out;
}

}  // namespace phalanx::wire

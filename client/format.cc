#include "client/format.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/terminal_text.h"
#include "core/job/json.h"
#include "core/job/scalar.h"
#include "core/wire/job_yaml.h"

namespace phalanx::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using job::Tree;

// Bytes that are no text would make the document unreadable.
Tree Text(const std::string& text) { return job::ScalarTree(text, job::NeedsQuotes(text)); }

// `index` below 0: the field is singular.
Tree ValueOf(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return job::ScalarTree(
          absl::StrCat(one ? reflection.GetInt32(message, &field)
                           : reflection.GetRepeatedInt32(message, &field, index)),
          false);
    case FieldDescriptor::CPPTYPE_INT64:
      return job::ScalarTree(
          absl::StrCat(one ? reflection.GetInt64(message, &field)
                           : reflection.GetRepeatedInt64(message, &field, index)),
          false);
    case FieldDescriptor::CPPTYPE_UINT32:
      return job::ScalarTree(
          absl::StrCat(one ? reflection.GetUInt32(message, &field)
                           : reflection.GetRepeatedUInt32(message, &field, index)),
          false);
    case FieldDescriptor::CPPTYPE_UINT64:
      return job::ScalarTree(
          absl::StrCat(one ? reflection.GetUInt64(message, &field)
                           : reflection.GetRepeatedUInt64(message, &field, index)),
          false);
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const double value = one ? reflection.GetDouble(message, &field)
                               : reflection.GetRepeatedDouble(message, &field, index);
      return std::isfinite(value) ? job::ScalarTree(job::FormatNumber(value), false) : Tree();
    }
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const double value = one ? reflection.GetFloat(message, &field)
                               : reflection.GetRepeatedFloat(message, &field, index);
      return std::isfinite(value) ? job::ScalarTree(job::FormatNumber(value), false) : Tree();
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      return job::ScalarTree((one ? reflection.GetBool(message, &field)
                                  : reflection.GetRepeatedBool(message, &field, index))
                                 ? "true"
                                 : "false",
                             false);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Text(EnumWord(one ? *reflection.GetEnum(message, &field)
                               : *reflection.GetRepeatedEnum(message, &field, index)));
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(one ? reflection.GetString(message, &field)
                      : reflection.GetRepeatedString(message, &field, index));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToTree(one ? reflection.GetMessage(message, &field)
                        : reflection.GetRepeatedMessage(message, &field, index));
  }
  return Tree();
}

Tree MapOf(const Message& message, const FieldDescriptor& field) {
  Tree tree;
  tree.kind = Tree::Kind::kMapping;
  const Reflection& reflection = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    tree.entries.push_back({ValueOf(entry, key, -1).scalar, ValueOf(entry, value, -1)});
  }
  // A map has no order of its own; answers have.
  std::sort(tree.entries.begin(), tree.entries.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  return tree;
}

// Code points, near enough to columns for what we print.
size_t WidthOf(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::optional<Format> ParseFormat(absl::string_view text) {
  constexpr absl::string_view kNames[] = {"table", "wide", "json", "yaml", "name"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == text) return static_cast<Format>(i);
  }
  return std::nullopt;
}

void Table::Add(std::vector<std::string> row) {
  for (size_t i = 0; i < row.size(); ++i) {
    const bool last = i + 1 == row.size();
    row[i] =
        last ? absl::StrReplaceAll(TerminalText(row[i]), {{"\n", "\n    "}}) : LineText(row[i]);
  }
  rows_.push_back(std::move(row));
}

void Table::Print(std::ostream& out, bool header) const {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], WidthOf(row[i]));
  }
  for (size_t r = header ? 0 : 1; r < rows_.size(); ++r) {
    const std::vector<std::string>& row = rows_[r];
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - WidthOf(row[i]) + 2, ' '));
    }
    out << absl::StripTrailingAsciiWhitespace(line) << "\n";
  }
}

std::string EnumWord(const google::protobuf::EnumValueDescriptor& value) {
  // The prefix is the type's name in capitals: JobPhase -> JOB_PHASE_.
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  absl::string_view rest = value.name();
  absl::ConsumePrefix(&rest, prefix + "_");
  std::string word;
  for (absl::string_view part : absl::StrSplit(rest, '_')) {
    std::string lower = absl::AsciiStrToLower(part);
    if (!lower.empty()) lower[0] = absl::ascii_toupper(static_cast<unsigned char>(lower[0]));
    word += lower;
  }
  return word;
}

Tree ToTree(const Message& message) {
  if (message.GetDescriptor()->full_name() == "google.protobuf.Timestamp") {
    google::protobuf::Timestamp time;
    time.CopyFrom(message);
    return job::ScalarTree(
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", ToTime(time), absl::UTCTimeZone()), true);
  }
  Tree tree;
  tree.kind = Tree::Kind::kMapping;
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_map()) {
      tree.entries.push_back({field.name(), MapOf(message, field)});
    } else if (field.is_repeated()) {
      Tree list;
      list.kind = Tree::Kind::kSequence;
      for (int k = 0; k < reflection.FieldSize(message, &field); ++k) {
        list.items.push_back(ValueOf(message, field, k));
      }
      tree.entries.push_back({field.name(), std::move(list)});
    } else if (!field.has_presence() || reflection.HasField(message, &field)) {
      tree.entries.push_back({field.name(), ValueOf(message, field, -1)});
    }
  }
  return tree;
}

void PrintTree(const Tree& tree, Format format, std::ostream& out) {
  out << (format == Format::kJson ? EscapedText(job::EmitJson(tree), Escapes::kJson)
                                  : EscapedText(wire::EmitYaml(tree), Escapes::kYaml));
}

void PrintField(absl::string_view name, absl::string_view value, std::ostream& out) {
  if (value.empty()) return;
  out << absl::StreamFormat("%-14s %s\n", absl::StrCat(name, ":"), TerminalText(value));
}

absl::Time ToTime(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

std::string FormatAge(absl::Duration age) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(age));
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  if (seconds < 86400) return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
  return absl::StrFormat("%dd%02dh", seconds / 86400, seconds / 3600 % 24);
}

std::string FormatCount(double count) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (count >= 1000 && unit + 1 < std::size(kUnits)) {
    count /= 1000;
    ++unit;
  }
  const int digits = unit == 0 ? 0 : count < 10 ? 2 : count < 100 ? 1 : 0;
  return absl::StrFormat("%.*f%s", digits, count, kUnits[unit]);
}

std::string FormatLoss(double loss) {
  return std::isnan(loss) ? "-" : absl::StrFormat("%.4g", loss);
}

}  // namespace phalanx::client

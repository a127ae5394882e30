// client/format.h: how answers look: tables for people, JSON and YAML for scripts.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/job/tree.h"

namespace phalanx::client {

enum class Format : uint8_t { kTable, kWide, kJson, kYaml, kName };
std::optional<Format> ParseFormat(absl::string_view text);

// Where a command writes: data on `out`, everything else on `talk`.
struct Io {
  std::ostream& out;
  std::ostream& talk;
  // `talk` is a terminal: progress may be redrawn in place.
  bool terminal = false;
  int columns = 80;
  bool headers = true;  // tables that list something begin with the names of their columns
};

// Columns as wide as their widest cell, two spaces between, no space at the ends of lines.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  // Cells are shown as LineText, the last of a row as TerminalText with its further lines indented:
  // none makes a row of its own.
  void Add(std::vector<std::string> row);
  void Print(std::ostream& out, bool header = true) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// A message as a document: fields under their proto names, numbers as numbers, enumerations as
// words
// ("Running"), timestamps in RFC 3339, absent messages left out, other fields always there.
job::Tree ToTree(const google::protobuf::Message& message);
// `key: [messages]`.
template <typename Messages>
job::Tree ToTree(const char* key, const Messages& messages) {
  job::Tree list, document;
  list.kind = job::Tree::Kind::kSequence;
  document.kind = job::Tree::Kind::kMapping;
  for (const auto& message : messages) list.items.push_back(ToTree(message));
  document.entries.push_back({key, std::move(list)});
  return document;
}
// As JSON or YAML.
void PrintTree(const job::Tree& tree, Format format, std::ostream& out);

// A line of a description: "NAME: VALUE", the values of all lines in one column. Nothing for an
// empty value.
void PrintField(absl::string_view name, absl::string_view value, std::ostream& out);

absl::Time ToTime(const google::protobuf::Timestamp& time);
// 3m12s, 2h05m, 4d03h: two units, as ages are read.
std::string FormatAge(absl::Duration age);
// 950, 12.3k, 4.56M.
std::string FormatCount(double count);
// Four significant digits, "-" for NaN.
std::string FormatLoss(double loss);
// "Running" for JOB_PHASE_RUNNING and the like.
std::string EnumWord(const google::protobuf::EnumValueDescriptor& value);

}  // namespace phalanx::client

// core/schedule/field_reader.h: reads documents of measured figures, all that is wrong at once.
//
// Pure. Not thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/violation.h"
#include "core/job/scalar.h"
#include "core/job/tree.h"

namespace phalanx::schedule {

// Reads fields of mappings and collects what is wrong with them.
class FieldReader {
 public:
  // Far from what is measured, and so near to 1 that no figure that is worked out of them is beyond
  // what a double holds.
  static constexpr double kNumberMin = 1e-24, kNumberMax = 1e24;
  static constexpr double kBytesMax = 1e13;

  // Every field that is read is known; others are violations.
  class Fields {
   public:
    Fields(FieldReader& reader, std::string path, const job::Tree& tree)
        : reader_(reader), path_(std::move(path)), tree_(tree) {
      if (tree.kind != job::Tree::Kind::kMapping) reader.Add(path_, "", "must be a mapping");
    }
    ~Fields() {
      std::set<std::string> seen;
      for (const auto& [name, value] : tree_.entries) {
        if (!seen.insert(name).second) reader_.Add(Path(name), "", "written twice");
        if (known_.count(name) == 0) reader_.Add(Path(name), "", "unknown field");
      }
    }
    Fields(const Fields&) = delete;
    Fields& operator=(const Fields&) = delete;

    std::string Path(const std::string& name) const {
      return path_.empty() ? name : absl::StrCat(path_, ".", name);
    }
    // nullptr where nothing is written, which is a violation unless it may be left open.
    const job::Tree* Find(const std::string& name, bool may_be_null) {
      known_.insert(name);
      for (const auto& [key, value] : tree_.entries) {
        if (key == name && value.kind != job::Tree::Kind::kNull) return &value;
      }
      const bool there = std::any_of(tree_.entries.begin(), tree_.entries.end(),
                                     [&](const auto& entry) { return entry.key == name; });
      if (!may_be_null || !there) {
        reader_.Add(Path(name), "",
                    may_be_null ? "is required; null: not measured" : "is required");
      }
      return nullptr;
    }
    std::string Text(const std::string& name, bool may_be_null = false) {
      const job::Tree* node = Find(name, may_be_null);
      if (node == nullptr) return "";
      if (node->kind == job::Tree::Kind::kScalar && node->quoted && !node->scalar.empty())
        return node->scalar;
      reader_.Add(Path(name), node->scalar, "must be a text");
      return "";
    }
    // Above 0, and finite; `zero` may be 0 as well.
    double Number(const std::string& name, bool may_be_null = false, bool zero = false) {
      const job::Tree* node = Find(name, may_be_null);
      if (node == nullptr) return 0;
      const std::optional<double> value = node->kind == job::Tree::Kind::kScalar && !node->quoted
                                              ? job::ParseNumber(node->scalar)
                                              : std::nullopt;
      const bool finite = value.has_value() && std::isfinite(*value);
      if (finite && ((*value >= kNumberMin && *value <= kNumberMax) || (zero && *value == 0)))
        return *value;
      reader_.Add(Path(name), node->scalar,
                  finite && *value > 0 ? "must be from 1e-24 to 1e24"
                  : zero               ? "must be a number of at least 0"
                                       : "must be a number above 0");
      return 0;
    }
    int64_t Bytes(const std::string& name, bool may_be_null = false, bool zero = false) {
      const double bytes = Number(name, may_be_null, zero);
      if (bytes <= kBytesMax) return static_cast<int64_t>(bytes);
      reader_.Add(Path(name), job::FormatNumber(bytes), "must be at most 1e13");
      return 0;
    }
    // 0 where it is not there, as in profiles that were taken before it was measured.
    double NumberIfThere(const std::string& name) {
      const bool there = std::any_of(tree_.entries.begin(), tree_.entries.end(),
                                     [&](const auto& entry) { return entry.key == name; });
      return there ? Number(name) : 0;
    }
    int64_t Whole(const std::string& name, int64_t low, int64_t high) {
      const job::Tree* node = Find(name, false);
      if (node == nullptr) return low;
      const std::optional<int64_t> value = node->kind == job::Tree::Kind::kScalar && !node->quoted
                                               ? job::ParseInteger(node->scalar)
                                               : std::nullopt;
      if (value.has_value() && *value >= low && *value <= high) return *value;
      reader_.Add(Path(name), node->scalar,
                  absl::StrCat("must be a whole number from ", low, " to ", high));
      return low;
    }
    // The place of one of `names`.
    size_t Choice(const std::string& name, absl::Span<const absl::string_view> names) {
      const std::string text = Text(name);
      const auto found = std::find(names.begin(), names.end(), text);
      if (found != names.end()) return static_cast<size_t>(found - names.begin());
      if (!text.empty()) reader_.Add(Path(name), text, "must be " + absl::StrJoin(names, " or "));
      return 0;
    }
    bool Flag(const std::string& name) {
      const job::Tree* node = Find(name, false);
      if (node == nullptr) return false;
      const std::optional<bool> value = node->kind == job::Tree::Kind::kScalar && !node->quoted
                                            ? job::ParseBoolean(node->scalar)
                                            : std::nullopt;
      if (!value.has_value()) reader_.Add(Path(name), node->scalar, "must be true or false");
      return value.value_or(false);
    }
    // Calls read(fields) for each mapping of a list that has at least one.
    template <typename Read>
    void List(const std::string& name, const Read& read) {
      const job::Tree* node = Find(name, false);
      if (node == nullptr) return;
      if (node->kind != job::Tree::Kind::kSequence || node->items.empty())
        return reader_.Add(Path(name), node->scalar, "must be a list with at least one entry");
      for (size_t i = 0; i < node->items.size(); ++i) {
        Fields fields(reader_, absl::StrCat(Path(name), "[", i, "]"), node->items[i]);
        read(fields);
      }
    }
    template <typename Read>
    void Mapping(const std::string& name, const Read& read, bool may_be_null = false) {
      const job::Tree* node = Find(name, may_be_null);
      if (node == nullptr) return;
      Fields fields(reader_, Path(name), *node);
      read(fields);
    }

   private:
    FieldReader& reader_;
    const std::string path_;
    const job::Tree& tree_;
    std::set<std::string> known_;
  };

  void Add(std::string field, std::string value, std::string rule) {
    violations_.push_back(
        {.field = std::move(field), .value = std::move(value), .rule = std::move(rule)});
  }
  absl::Status Status() const { return ViolationsStatus(violations_); }

 private:
  std::vector<Violation> violations_;
};

}  // namespace phalanx::schedule

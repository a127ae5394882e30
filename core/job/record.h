// core/job/record.h: one mapping of a job file, read by its schema.
//
// Making a Record reports unknown, repeated, missing and misplaced fields; each getter reports a
// value of the wrong type or out of range. A getter leaves its target alone when nothing is written
// (or null) and when the value is wrong, so targets start with their defaults. Asking for a name
// that the schema does not have is a caller's bug and ends the process. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/job/job_reader.h"
#include "core/job/report.h"
#include "core/job/schema.h"

namespace phalanx::job {

// Longest string of a job file, in bytes.
inline constexpr size_t kStringMax = 4096;
// Elements of a list of numbers.
inline constexpr size_t kListMax = 4096;
// Entries of a mapping of strings, and bytes of one of its keys or values.
inline constexpr size_t kLabelsMax = 64, kLabelBytesMax = 253;

// Not thread-safe. Keeps a reference to its report.
class Record {
 public:
  // The mapping at `path`, which nothing at all may stand for; its fields are those of
  // `schema_path`. For `architecture`: of which family.
  Record(Report& report, std::string path, absl::string_view schema_path, Purpose purpose,
         std::optional<Family> family = std::nullopt);

  const std::string& path() const { return path_; }
  std::string PathOf(absl::string_view name) const { return JoinPath(path_, name); }
  // Something other than null is written there.
  bool Has(absl::string_view name) const { return Written(name) != nullptr; }
  // How many elements a written list has.
  size_t Count(absl::string_view name) const;

  void Get(absl::string_view name, std::string* out) const;
  void Get(absl::string_view name, std::optional<std::string>* out) const;
  void Get(absl::string_view name, int32_t* out) const;
  void Get(absl::string_view name, int64_t* out) const;
  void Get(absl::string_view name, uint64_t* out) const;
  void Get(absl::string_view name, double* out) const;
  void Get(absl::string_view name, bool* out) const;
  void Get(absl::string_view name, absl::Duration* out) const;
  void Get(absl::string_view name, std::vector<int32_t>* out) const;
  void Get(absl::string_view name, std::vector<double>* out) const;
  void Get(absl::string_view name, std::map<std::string, std::string>* out) const;
  // File names of a kPatterns field, expanded.
  void GetPatterns(absl::string_view name, std::vector<std::string>* out) const;
  // Positions among the field's choices.
  std::optional<size_t> GetChoice(absl::string_view name) const;
  std::optional<std::vector<size_t>> GetChoices(absl::string_view name) const;

  // An enumeration whose values are numbered like the field's choices, from `first`.
  template <typename Enum>
  void GetEnum(absl::string_view name, Enum* out, size_t first = 0) const {
    if (const std::optional<size_t> choice = GetChoice(name)) {
      *out = static_cast<Enum>(*choice + first);
    }
  }

 private:
  const Field& FieldOf(absl::string_view name) const;
  const Tree* Written(absl::string_view name) const;
  // The node's text if it is a plain scalar; otherwise reports what was expected.
  std::optional<absl::string_view> Plain(absl::string_view name) const;
  std::optional<std::string> Text(absl::string_view name) const;
  std::optional<int64_t> Integer(absl::string_view name) const;
  void CheckNames(Purpose purpose, std::optional<Family> family);
  void CheckRequired(const Field& field, Purpose purpose, std::optional<Family> family);
  void Expect(absl::string_view name) const;

  Report& report_;
  const std::string path_;
  const absl::Span<const Field> fields_;
  const Tree* mapping_ = nullptr;  // nullptr: nothing is written, or no mapping
};

}  // namespace phalanx::job

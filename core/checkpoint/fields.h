// core/checkpoint/fields.h: one object of a JSON document, read field by field.
//
// Of everything that is wrong with a document the first thing is told, by path, value and rule.
// Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/job/tree.h"

namespace phalanx::checkpoint {

// Not thread-safe.
class Fields {
 public:
  // `path` names the object, empty for the document; what is wrong first goes to `first`. Keeps
  // references to `object` and `first`.
  Fields(const job::Tree& object, std::string path, absl::Status* first);

  // Of a field that is missing or wrong: nothing, zero, an empty tree.
  std::string Text(absl::string_view name);
  int64_t Integer(absl::string_view name, int64_t low,
                  int64_t high = std::numeric_limits<int64_t>::max());
  uint64_t Unsigned(absl::string_view name);
  double Number(absl::string_view name);  // ".nan", ".inf" and "-.inf" stand in quotes
  bool Flag(absl::string_view name);
  const job::Tree& Object(absl::string_view name);
  const job::Tree& List(absl::string_view name);

  // A field that nobody asked for is unknown, and one that stands twice is wrong.
  void Finish();

  // "PATH.NAME: VALUE: RULE"
  void Fail(absl::string_view name, absl::string_view rule);
  std::string PathOf(absl::string_view name) const;

 private:
  const job::Tree* Find(absl::string_view name);
  const job::Tree& OfKind(absl::string_view name, job::Tree::Kind kind, absl::string_view rule);
  const job::Tree& Scalar(absl::string_view name, bool quoted, absl::string_view rule);

  const job::Tree& object_;
  const std::string path_;
  absl::Status* const first_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace phalanx::checkpoint

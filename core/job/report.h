// core/job/report.h: the violations of one document, collected while it is read.
//
// A report knows the document, so that whoever finds a violation names only the field and the rule;
// the value as written and the line are looked up. It also answers whether a field was sound, so
// that a rule about several fields stays silent where one of them is wrong already: one mistake
// gives one violation. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/violation.h"
#include "core/job/tree.h"

namespace phalanx::job {

// Longest value and longest name that a violation shows; the rest is cut.
inline constexpr size_t kValueMax = 80;
// Longest rule; rules quote names, which are as long as the user likes.
inline constexpr size_t kRuleMax = 4096;
// A document with more violations shows so many and counts the rest.
inline constexpr size_t kViolationsMax = 256;

// `tree` in one line, as it could be written, cut to kValueMax.
std::string ShowValue(const Tree& tree);
// A name from the document, cut and without control characters.
std::string ShowName(absl::string_view name);
// "spec", "name" -> "spec.name"; "", "spec" -> "spec".
std::string JoinPath(absl::string_view path, absl::string_view name);

// Not thread-safe. Keeps pointers into the document.
class Report {
 public:
  explicit Report(const Tree& document);

  // The node at `path`; nullptr where nothing is written.
  const Tree* Find(absl::string_view path) const;
  // The same, but nullptr also for null, which stands for "not written".
  const Tree* Written(absl::string_view path) const;
  void Add(const std::string& path, std::string rule);
  // Makes the field unsound without a violation: another one is the reason.
  void Doubt(const std::string& path) { unsound_.insert(path); }
  // For a node that Find does not reach: the second of two equal keys.
  void AddAt(const std::string& path, const Tree& node, std::string rule);
  // Neither the field nor what it lies in nor what it holds has a violation.
  bool Sound(const std::string& path) const;

  // In the document's order; a field that is missing stands where its mapping begins.
  std::vector<Violation> Sorted() const;
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    Violation violation;
    int32_t column = 0;
  };

  void Index(const std::string& path, const Tree& node, int depth);
  const Tree& Enclosing(absl::string_view path) const;

  const Tree& document_;
  std::map<std::string, const Tree*, std::less<>> nodes_;
  std::set<std::string, std::less<>> unsound_;
  std::vector<Entry> entries_;
  size_t left_out_ = 0;
};

}  // namespace phalanx::job

#include "core/job/report.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace phalanx::job {
namespace {

// Levels of a job file: spec.modules[0].parallel.order[0] is the deepest.
constexpr int kDepthMax = 8;

bool IsShownAsItIs(absl::string_view name) {
  return name.size() <= kValueMax && std::none_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_iscntrl(static_cast<unsigned char>(c));
         });
}

// Cuts on a character boundary of UTF-8.
std::string Cut(std::string text, size_t bytes) {
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  if (text.size() <= bytes) return text;
  size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text + "...";
}

void AppendFlow(const Tree& tree, int depth, std::string* out) {
  if (out->size() > kValueMax) return;  // Cut drops it anyway
  const bool nested = depth < kDepthMax;
  switch (tree.kind) {
    case Tree::Kind::kNull:
      absl::StrAppend(out, "null");
      return;
    case Tree::Kind::kScalar:
      if (tree.quoted) {
        absl::StrAppend(out, "\"", tree.scalar.substr(0, 2 * kValueMax), "\"");
      } else {
        absl::StrAppend(out, tree.scalar.substr(0, 2 * kValueMax));
      }
      return;
    case Tree::Kind::kSequence:
      absl::StrAppend(out, "[");
      for (size_t i = 0; nested && i < tree.items.size() && out->size() <= kValueMax; ++i) {
        if (i > 0) absl::StrAppend(out, ", ");
        AppendFlow(tree.items[i], depth + 1, out);
      }
      absl::StrAppend(out, "]");
      return;
    case Tree::Kind::kMapping:
      absl::StrAppend(out, "{");
      for (size_t i = 0; nested && i < tree.entries.size() && out->size() <= kValueMax; ++i) {
        absl::StrAppend(out, i > 0 ? ", " : "", ShowName(tree.entries[i].key), ": ");
        AppendFlow(tree.entries[i].value, depth + 1, out);
      }
      absl::StrAppend(out, "}");
      return;
  }
}

// "a.b[3].c" -> "a.b[3]" -> "a.b" -> "a" -> "".
absl::string_view ParentOf(absl::string_view path) {
  const size_t cut = path.find_last_of(".[");
  return cut == absl::string_view::npos ? absl::string_view() : path.substr(0, cut);
}

}  // namespace

std::string ShowValue(const Tree& tree) {
  std::string text;
  AppendFlow(tree, 0, &text);
  return Cut(std::move(text), kValueMax);
}

std::string ShowName(absl::string_view name) {
  return Cut(std::string(name.substr(0, 2 * kValueMax)), kValueMax);
}

std::string JoinPath(absl::string_view path, absl::string_view name) {
  if (path.empty()) return ShowName(name);
  if (IsShownAsItIs(name)) return absl::StrCat(path, ".", name);
  return absl::StrCat(path, ".", ShowName(name));
}

Report::Report(const Tree& document) : document_(document) { Index("", document, 0); }

void Report::Index(const std::string& path, const Tree& node, int depth) {
  if (!nodes_.emplace(path, &node).second || depth == kDepthMax) return;
  for (const auto& [name, value] : node.entries) Index(JoinPath(path, name), value, depth + 1);
  for (size_t i = 0; i < node.items.size(); ++i) {
    Index(absl::StrCat(path, "[", i, "]"), node.items[i], depth + 1);
  }
}

const Tree* Report::Find(absl::string_view path) const {
  const auto found = nodes_.find(path);
  return found == nodes_.end() ? nullptr : found->second;
}

const Tree* Report::Written(absl::string_view path) const {
  const Tree* node = Find(path);
  return node == nullptr || node->kind == Tree::Kind::kNull ? nullptr : node;
}

const Tree& Report::Enclosing(absl::string_view path) const {
  while (!path.empty()) {
    if (const Tree* node = Find(path); node != nullptr) return *node;
    path = ParentOf(path);
  }
  return document_;
}

void Report::Add(const std::string& path, std::string rule) {
  unsound_.insert(path);
  const Tree* node = Find(path);
  const Tree& where = node != nullptr ? *node : Enclosing(path);
  // A whole mapping is no value to quote, except where something else was expected of it.
  const bool show = node != nullptr && !path.empty();
  if (entries_.size() >= kViolationsMax) {
    ++left_out_;
    return;
  }
  entries_.push_back(
      {Violation{path, show ? ShowValue(*node) : "", Cut(std::move(rule), kRuleMax), where.line},
       where.column});
}

void Report::AddAt(const std::string& path, const Tree& node, std::string rule) {
  unsound_.insert(path);
  if (entries_.size() >= kViolationsMax) {
    ++left_out_;
    return;
  }
  entries_.push_back(
      {Violation{path, ShowValue(node), Cut(std::move(rule), kRuleMax), node.line}, node.column});
}

bool Report::Sound(const std::string& path) const {
  if (unsound_.empty()) return true;
  for (absl::string_view up = path; !up.empty(); up = ParentOf(up)) {
    if (unsound_.find(up) != unsound_.end()) return false;
  }
  const auto inside = [this](const std::string& prefix) {
    const auto next = unsound_.lower_bound(prefix);
    return next != unsound_.end() && absl::StartsWith(*next, prefix);
  };
  return !inside(path + ".") && !inside(path + "[");
}

std::vector<Violation> Report::Sorted() const {
  std::vector<Entry> entries = entries_;
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.violation.line, a.column) < std::tie(b.violation.line, b.column);
  });
  std::vector<Violation> violations;
  for (Entry& entry : entries) violations.push_back(std::move(entry.violation));
  if (left_out_ > 0) {
    violations.push_back({"", "", absl::StrCat("and ", left_out_, " more violations")});
  }
  return violations;
}

}  // namespace phalanx::job

#include "core/wire/job_yaml.h"

#include <yaml-cpp/emitter.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/scalar.h"

namespace phalanx::wire {
namespace {

using job::Tree;

// Ends parsing from within a handler; caught by ParseYaml.
struct Refused {
  std::string rule;
  YAML::Mark mark;
};

absl::Status At(absl::string_view rule, int32_t line, int32_t column) {
  std::string text(rule);
  if (line > 0) text = absl::StrCat("line ", line, ", column ", column, ": ", rule);
  return ViolationsStatus({{"", "", std::move(text), line}});
}

size_t CountNodes(const Tree& tree) {
  size_t count = 1;
  for (const Tree& item : tree.items) count += CountNodes(item);
  for (const auto& [name, value] : tree.entries) count += CountNodes(value);
  return count;
}

int DepthOf(const Tree& tree) {
  int depth = 0;
  for (const Tree& item : tree.items) depth = std::max(depth, DepthOf(item));
  for (const auto& [name, value] : tree.entries) depth = std::max(depth, DepthOf(value));
  return depth + 1;
}

std::string TooDeep() { return absl::StrCat("nested deeper than ", kDocumentDepthMax, " levels"); }

// Whether `text` begins with more brackets than may be open: yaml-cpp, which looks for a key first,
// finds another fault with those.
bool NestsTooDeep(absl::string_view text) {
  return std::min(text.find_first_not_of("[{ "), text.size()) >
         static_cast<size_t>(kDocumentDepthMax);
}

bool HasControl(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const unsigned char u = static_cast<unsigned char>(c);
    return (u < 0x20 && c != '\t' && c != '\n' && c != '\r') || u == 0x7F;
  });
}

// Builds the tree from yaml-cpp's events. Container and key under construction are on a stack.
class TreeBuilder final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Finish(Make(Tree::Kind::kNull, mark), anchor, mark);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Tree tree = Make(Tree::Kind::kScalar, mark);
    if (tag == "!" || tag == "tag:yaml.org,2002:str") {
      tree.quoted = true;
    } else if (tag != "?" && !tag.empty()) {
      throw Refused{"tags are not understood", mark};
    }
    if (HasControl(value)) throw Refused{"control characters are not allowed", mark};
    tree.scalar = value;
    Finish(std::move(tree), anchor, mark);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    // An anchor is known only once its node is complete, so a node cannot hold itself.
    if (found == anchors_.end()) throw Refused{"an alias may not lie within its anchor", mark};
    nodes_ += CountNodes(found->second) - 1;
    if (static_cast<int>(stack_.size()) + DepthOf(found->second) > kDocumentDepthMax) {
      throw Refused{TooDeep(), mark};
    }
    CheckNodes(mark);
    Finish(found->second, 0, mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(Tree::Kind::kSequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(Tree::Kind::kMapping, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

  Tree Take() { return std::move(root_); }

 private:
  struct Level {
    Tree tree;
    YAML::anchor_t anchor = 0;
    std::optional<std::string> key;  // of the entry whose value comes next
  };

  Tree Make(Tree::Kind kind, const YAML::Mark& mark) {
    Tree tree;
    tree.kind = kind;
    tree.line = mark.line + 1;
    tree.column = mark.column + 1;
    return tree;
  }

  void CheckNodes(const YAML::Mark& mark) {
    if (++nodes_ > kDocumentNodesMax) {
      throw Refused{absl::StrCat("more than ", kDocumentNodesMax, " values"), mark};
    }
  }

  void Open(Tree::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    if (tag != "?" && !tag.empty()) throw Refused{"tags are not understood", mark};
    CheckNodes(mark);
    if (stack_.size() >= static_cast<size_t>(kDocumentDepthMax)) {
      throw Refused{TooDeep(), mark};
    }
    if (!stack_.empty() && stack_.back().tree.kind == Tree::Kind::kMapping &&
        !stack_.back().key.has_value()) {
      throw Refused{"a key must be a word", mark};
    }
    stack_.push_back({Make(kind, mark), anchor, std::nullopt});
  }

  void Close() {
    Level level = std::move(stack_.back());
    stack_.pop_back();
    Attach(std::move(level.tree), level.anchor);
  }

  void Finish(Tree tree, YAML::anchor_t anchor, const YAML::Mark& mark) {
    CheckNodes(mark);
    if (!stack_.empty() && stack_.back().tree.kind == Tree::Kind::kMapping &&
        !stack_.back().key.has_value()) {
      if (tree.kind != Tree::Kind::kScalar) throw Refused{"a key must be a word", mark};
      if (anchor != 0) anchors_[anchor] = tree;
      stack_.back().key = std::move(tree.scalar);
      return;
    }
    Attach(std::move(tree), anchor);
  }

  void Attach(Tree tree, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = tree;
    if (stack_.empty()) {
      root_ = std::move(tree);
      return;
    }
    Level& level = stack_.back();
    if (level.tree.kind == Tree::Kind::kSequence) {
      level.tree.items.push_back(std::move(tree));
    } else {
      level.tree.entries.push_back({*std::move(level.key), std::move(tree)});
      level.key.reset();
    }
  }

  Tree root_;
  std::vector<Level> stack_;
  std::map<YAML::anchor_t, Tree> anchors_;
  size_t nodes_ = 0;
};

// Well-formed UTF-8: no stray continuation, no overlong form, no surrogate, at most U+10FFFF.
bool IsUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xC2 ? 0
                          : lead < 0xE0 ? 2
                          : lead < 0xF0 ? 3
                          : lead < 0xF5 ? 4
                                        : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      const unsigned char next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      code = (code << 6) | (next & 0x3Fu);
    }
    if ((length == 3 && code < 0x800) || (length == 4 && (code < 0x10000 || code > 0x10FFFF)) ||
        (code >= 0xD800 && code < 0xE000)) {
      return false;
    }
    i += length;
  }
  return true;
}

// What need not be understood to be refused, before a parser sees it.
absl::Status CheckText(absl::string_view text) {
  if (text.size() > kDocumentBytesMax) {
    return At(absl::StrCat("the document has ", text.size(), " bytes; at most ", kDocumentBytesMax,
                           " are allowed"),
              0, 0);
  }
  int32_t line = 1, column = 1;
  for (const char c : text) {
    if (HasControl(std::string(1, c))) {
      return At("control characters are not allowed", line, column);
    }
    ++column;
    if (c == '\n') {
      ++line;
      column = 1;
    }
  }
  if (!IsUtf8(text)) return At("the document is not UTF-8", 0, 0);
  return absl::OkStatus();
}

bool IsShortList(const Tree& tree) {
  size_t length = 0;
  for (const Tree& item : tree.items) {
    if (item.kind != Tree::Kind::kScalar) return false;
    length += item.scalar.size() + 2;
  }
  return length <= 80;
}

// What is escaped on its way to a terminal reads back as itself within quotes alone.
bool IsEscaped(const std::string& text) { return EscapedText(text, Escapes::kYaml) != text; }

void Emit(const Tree& tree, YAML::Emitter& out) {
  switch (tree.kind) {
    case Tree::Kind::kNull:
      out << YAML::Null;
      return;
    case Tree::Kind::kScalar:
      if (tree.quoted || tree.scalar.empty() || IsEscaped(tree.scalar)) out << YAML::DoubleQuoted;
      out << tree.scalar;
      return;
    case Tree::Kind::kSequence:
      if (IsShortList(tree)) out << YAML::Flow;
      out << YAML::BeginSeq;
      for (const Tree& item : tree.items) Emit(item, out);
      out << YAML::EndSeq;
      return;
    case Tree::Kind::kMapping:
      if (tree.entries.empty()) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const auto& [name, value] : tree.entries) {
        out << YAML::Key;
        if (job::NeedsQuotes(name) || IsEscaped(name)) out << YAML::DoubleQuoted;
        out << name << YAML::Value;
        Emit(value, out);
      }
      out << YAML::EndMap;
      return;
  }
}

}  // namespace

absl::StatusOr<Tree> ParseYaml(absl::string_view text) {
  if (absl::Status status = CheckText(text); !status.ok()) return status;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder;
    if (!parser.HandleNextDocument(builder)) return Tree();
    Tree tree = builder.Take();
    TreeBuilder second;
    if (parser.HandleNextDocument(second)) {
      const Tree next = second.Take();
      return At("there must be one document only", next.line, next.column);
    }
    return tree;
  } catch (const Refused& refused) {
    if (NestsTooDeep(text.substr(std::min(text.size(), static_cast<size_t>(refused.mark.pos))))) {
      return At(TooDeep(), refused.mark.line + 1, refused.mark.column + 1);
    }
    return At(refused.rule, refused.mark.line + 1, refused.mark.column + 1);
  } catch (const YAML::Exception& exception) {
    return At(exception.msg, exception.mark.line + 1, exception.mark.column + 1);
  } catch (const std::exception& exception) {
    return At(exception.what(), 0, 0);
  }
}

std::string EmitYaml(const Tree& tree) {
  YAML::Emitter out;
  out.SetIndent(2);
  Emit(tree, out);
  return absl::StrCat(out.c_str(), "\n");
}

absl::StatusOr<job::ReadJob> ReadJobFile(absl::string_view text, job::Purpose purpose) {
  absl::StatusOr<Tree> tree = ParseYaml(text);
  if (!tree.ok()) return tree.status();
  return job::ReadJobSpec(*tree, purpose);
}

}  // namespace phalanx::wire

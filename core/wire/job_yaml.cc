#include "core/wire/job_yaml.h"

#include <yaml.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/base/utf8.h"
#include "core/job/scalar.h"
#include "core/wire/yaml_text.h"

namespace phalanx::wire {
namespace {

using job::Tree;

absl::Status FaultAt(absl::string_view rule, const yaml_mark_t& mark) {
  return YamlFault(rule, mark.line + 1, mark.column + 1);
}

// What a tree is, and each copy of it that an alias makes.
struct TreeSize {
  size_t nodes = 1;
  size_t bytes = 0;  // of scalars and keys
  int depth = 1;
};

TreeSize SizeOf(const Tree& tree) {
  TreeSize size{.bytes = tree.scalar.size()};
  const auto add = [&size](const Tree& part) {
    const TreeSize inner = SizeOf(part);
    size.nodes += inner.nodes;
    size.bytes += inner.bytes;
    size.depth = std::max(size.depth, inner.depth + 1);
  };
  for (const Tree& item : tree.items) add(item);
  for (const auto& [name, value] : tree.entries) {
    size.bytes += name.size();
    add(value);
  }
  return size;
}

std::string TooDeep() { return absl::StrCat("nested deeper than ", kDocumentDepthMax, " levels"); }

// Whether `text` begins with more brackets than may be open, of which libyaml looks at one as a key
// first.
bool NestsTooDeep(absl::string_view text) {
  return std::min(text.find_first_not_of("[{ "), text.size()) >
         static_cast<size_t>(kDocumentDepthMax);
}

std::string OrEmpty(const yaml_char_t* text) {
  return text == nullptr ? "" : reinterpret_cast<const char*>(text);
}

// The text behind `mark`; marks come in the order of the text.
class Reader {
 public:
  explicit Reader(absl::string_view text) : text_(text) {}

  absl::string_view From(const yaml_mark_t& mark) {
    for (; index_ < mark.index && !text_.empty(); ++index_) {
      uint32_t character = 0;
      text_.remove_prefix(std::max<size_t>(Utf8Bytes(text_, character), 1));
    }
    return text_;
  }

 private:
  absl::string_view text_;
  size_t index_ = 0;  // of the character that text_ begins with
};

// Builds the tree from libyaml's events. Container and key under construction are on a stack.
class TreeBuilder {
 public:
  explicit TreeBuilder(const YamlText& text)
      : reader_(text.text),
        has_stand_ins_(text.has_stand_ins),
        may_have_tags_(absl::StrContains(text.text, '!')) {}

  absl::Status Add(const yaml_event_t& event) {
    switch (event.type) {
      case YAML_ALIAS_EVENT:
        return AddAlias(OrEmpty(event.data.alias.anchor), event.start_mark);
      case YAML_SCALAR_EVENT:
        return AddScalar(event);
      case YAML_SEQUENCE_START_EVENT:
        return Open(Tree::Kind::kSequence, event.data.sequence_start.tag,
                    event.data.sequence_start.anchor, event.start_mark);
      case YAML_MAPPING_START_EVENT:
        return Open(Tree::Kind::kMapping, event.data.mapping_start.tag,
                    event.data.mapping_start.anchor, event.start_mark);
      case YAML_SEQUENCE_END_EVENT:
      case YAML_MAPPING_END_EVENT:
        Close();
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  }

  Tree Take() { return std::move(root_); }

 private:
  struct Level {
    Tree tree;
    std::string anchor;
    std::optional<std::string> key;  // of the entry whose value comes next
  };

  static Tree Make(Tree::Kind kind, const yaml_mark_t& mark) {
    Tree tree;
    tree.kind = kind;
    tree.line = static_cast<int32_t>(mark.line) + 1;
    tree.column = static_cast<int32_t>(mark.column) + 1;
    return tree;
  }

  absl::Status Refuse(absl::string_view rule, const yaml_mark_t& mark) {
    return FaultAt(NestsTooDeep(reader_.From(mark)) ? TooDeep() : rule, mark);
  }

  absl::Status CountNodes(size_t nodes, const yaml_mark_t& mark) {
    nodes_ += nodes;
    if (nodes_ <= kDocumentNodesMax) return absl::OkStatus();
    return Refuse(absl::StrCat("more than ", kDocumentNodesMax, " values"), mark);
  }

  bool AwaitsKey() const {
    return !stack_.empty() && stack_.back().tree.kind == Tree::Kind::kMapping &&
           !stack_.back().key.has_value();
  }

  // Whether `! word` stands there, a text whatever it looks like: of that libyaml tells no more
  // than where it begins.
  bool IsMarkedText(const yaml_event_t& event) {
    if (!may_have_tags_) return false;
    absl::string_view text = reader_.From(event.start_mark);
    if (absl::StartsWith(text, "&")) {
      text.remove_prefix(std::min(text.find_first_of(" \t\r\n"), text.size()));
      text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    }
    return absl::StartsWith(text, "!");
  }

  absl::Status AddScalar(const yaml_event_t& event) {
    const auto& scalar = event.data.scalar;
    const yaml_mark_t& mark = event.start_mark;
    absl::string_view value(reinterpret_cast<const char*>(scalar.value), scalar.length);
    const std::string tag = OrEmpty(scalar.tag);
    if (!tag.empty() && tag != "!" && tag != YAML_STR_TAG) {
      return Refuse("tags are not understood", mark);
    }
    Tree tree = Make(Tree::Kind::kScalar, mark);
    tree.quoted = !tag.empty() || scalar.style != YAML_PLAIN_SCALAR_STYLE || IsMarkedText(event);
    if (HasControl(value)) return Refuse("control characters are not allowed", mark);
    if (!tree.quoted &&
        (value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL")) {
      tree.kind = Tree::Kind::kNull;
    } else {
      tree.scalar = has_stand_ins_ ? WithoutStandIns(value) : std::string(value);
    }
    return Finish(std::move(tree), OrEmpty(scalar.anchor), mark);
  }

  absl::Status AddAlias(const std::string& anchor, const yaml_mark_t& mark) {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) return Refuse("the referenced anchor is not defined", mark);
    // An anchor is known only once its node is complete, so a node cannot hold itself.
    if (!found->second.has_value()) {
      return Refuse("an alias may not lie within its anchor", mark);
    }
    const TreeSize size = SizeOf(*found->second);
    RETURN_IF_ERROR(CountNodes(size.nodes - 1, mark));
    if (static_cast<int>(stack_.size()) + size.depth > kDocumentDepthMax) {
      return Refuse(TooDeep(), mark);
    }
    repeated_bytes_ += size.bytes;
    if (repeated_bytes_ > kDocumentBytesMax) {
      return Refuse(absl::StrCat("aliases repeat more than ", kDocumentBytesMax, " bytes"), mark);
    }
    return Finish(Tree(*found->second), "", mark);
  }

  absl::Status Open(Tree::Kind kind, const yaml_char_t* tag, const yaml_char_t* anchor,
                    const yaml_mark_t& mark) {
    if (tag != nullptr) return Refuse("tags are not understood", mark);
    RETURN_IF_ERROR(CountNodes(1, mark));
    if (stack_.size() >= static_cast<size_t>(kDocumentDepthMax)) return Refuse(TooDeep(), mark);
    if (AwaitsKey()) return Refuse("a key must be a word", mark);
    stack_.push_back({Make(kind, mark), OrEmpty(anchor), std::nullopt});
    if (anchor != nullptr) anchors_[stack_.back().anchor] = std::nullopt;
    return absl::OkStatus();
  }

  void Close() {
    Level level = std::move(stack_.back());
    stack_.pop_back();
    Attach(std::move(level.tree), level.anchor);
  }

  absl::Status Finish(Tree tree, const std::string& anchor, const yaml_mark_t& mark) {
    RETURN_IF_ERROR(CountNodes(1, mark));
    if (!AwaitsKey()) {
      Attach(std::move(tree), anchor);
      return absl::OkStatus();
    }
    if (tree.kind != Tree::Kind::kScalar) return Refuse("a key must be a word", mark);
    if (!anchor.empty()) anchors_[anchor] = tree;
    stack_.back().key = std::move(tree.scalar);
    return absl::OkStatus();
  }

  void Attach(Tree tree, const std::string& anchor) {
    if (!anchor.empty()) anchors_[anchor] = tree;
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

  Reader reader_;
  const bool has_stand_ins_;
  const bool may_have_tags_;
  Tree root_;
  std::vector<Level> stack_;
  std::map<std::string, std::optional<Tree>> anchors_;  // nullopt: its node is not complete
  size_t nodes_ = 0;
  size_t repeated_bytes_ = 0;
};

// What libyaml holds is freed however reading ends.
class Parser {
 public:
  explicit Parser(absl::string_view text) : is_ready_(yaml_parser_initialize(&parser_) == 1) {
    if (!is_ready_) return;
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() {
    yaml_event_delete(&event_);
    if (is_ready_) yaml_parser_delete(&parser_);
  }

  // False at a fault. The event is there until the next call.
  bool Next() {
    yaml_event_delete(&event_);
    return is_ready_ && yaml_parser_parse(&parser_, &event_) == 1;
  }
  const yaml_event_t& event() const { return event_; }

  absl::Status Fault(absl::string_view text) const;

 private:
  yaml_parser_t parser_;
  yaml_event_t event_ = {};
  bool is_ready_;
};

// What is said in place of libyaml's words; all others say enough.
constexpr std::pair<absl::string_view, absl::string_view> kRules[] = {
    {"block sequence entries are not allowed in this context", "no list may begin here"},
    {"did not find expected <document start>", "there must be one document only"},
    {"did not find expected node content", "here must be a value"},
    {"found unexpected ':'", "a space must follow the colon"},
    {"mapping values are not allowed in this context", "no mapping may begin here"},
};

absl::Status Parser::Fault(absl::string_view text) const {
  if (!is_ready_ || parser_.error == YAML_MEMORY_ERROR || parser_.problem == nullptr) {
    return YamlFault("there is no memory for it", 0, 0);
  }
  const absl::string_view problem = parser_.problem;
  const absl::string_view context = parser_.context == nullptr ? "" : parser_.context;
  const yaml_mark_t& mark = parser_.problem_mark;
  const absl::string_view rest = Reader(text).From(mark);
  if (absl::StrContains(problem, "a tab character") ||
      (absl::StartsWith(rest, "\t") && absl::StrContains(problem, "start any token"))) {
    return FaultAt("a tab may not stand before a value; indent with spaces", mark);
  }
  if (absl::StrContains(problem, "start any token")) {
    return FaultAt(absl::StrCat("no value begins with ", rest.substr(0, 1), " but in quotes"),
                   mark);
  }
  if (context == "while scanning a simple key") {
    return FaultAt("here must be a key on one line, with a colon and a space behind it",
                   parser_.context_mark);
  }
  for (const auto& [theirs, ours] : kRules) {
    if (problem == theirs) return FaultAt(ours, mark);
  }
  if (context.empty()) return FaultAt(problem, mark);
  return FaultAt(
      absl::StrCat(problem, " ", context, " that begins in line ", parser_.context_mark.line + 1),
      mark);
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

std::string Written(const std::string& word, bool quoted, bool in_flow) {
  if (quoted || IsEscaped(word) || !IsPlainYaml(word, in_flow)) return QuotedYaml(word);
  return word;
}

// What a value stands behind.
enum class Behind { kNothing, kKey, kDash };

void Emit(const Tree& tree, size_t indent, Behind behind, std::string& out);

void EmitEntry(const Tree::Entry& entry, size_t indent, std::string& out) {
  // A parser looks for the colon within 1024 characters, unless it is told of a key.
  constexpr size_t kKeyMax = 1024;
  const std::string key = Written(entry.key, job::NeedsQuotes(entry.key), false);
  if (key.size() <= kKeyMax) {
    out += key;
  } else {
    absl::StrAppend(&out, "? ", key, "\n", std::string(indent, ' '));
  }
  out.push_back(':');
  Emit(entry.value, indent + 2, Behind::kKey, out);
}

// `indent`: of lines that follow the first.
void Emit(const Tree& tree, size_t indent, Behind behind, std::string& out) {
  const bool is_line = tree.kind == Tree::Kind::kNull || tree.kind == Tree::Kind::kScalar ||
                       (tree.kind == Tree::Kind::kSequence && IsShortList(tree)) ||
                       (tree.kind == Tree::Kind::kMapping && tree.entries.empty());
  const std::string line = absl::StrCat("\n", std::string(indent, ' '));
  if (is_line || (behind == Behind::kDash && tree.kind == Tree::Kind::kMapping)) {
    out += behind == Behind::kNothing ? "" : " ";
  } else {
    out += behind == Behind::kNothing ? "" : line;
  }
  switch (tree.kind) {
    case Tree::Kind::kNull:
      out += "~";
      return;
    case Tree::Kind::kScalar:
      out += Written(tree.scalar, tree.quoted, false);
      return;
    case Tree::Kind::kSequence:
      out += is_line ? "[" : "";
      for (size_t i = 0; i < tree.items.size(); ++i) {
        if (is_line) {
          absl::StrAppend(&out, i > 0 ? ", " : "",
                          Written(tree.items[i].scalar, tree.items[i].quoted, true));
        } else {
          absl::StrAppend(&out, i > 0 ? line : "", "-");
          Emit(tree.items[i], indent + 2, Behind::kDash, out);
        }
      }
      out += is_line ? "]" : "";
      return;
    case Tree::Kind::kMapping:
      if (is_line) out += "{}";
      for (size_t i = 0; i < tree.entries.size(); ++i) {
        if (i > 0) out += line;
        EmitEntry(tree.entries[i], indent, out);
      }
      return;
  }
}

}  // namespace

absl::StatusOr<Tree> ParseYaml(absl::string_view text) {
  ASSIGN_OR_RETURN(const YamlText prepared, PrepareYaml(text, kDocumentBytesMax));
  Parser parser(prepared.text);
  TreeBuilder builder(prepared);
  int documents = 0;
  while (parser.Next()) {
    const yaml_event_t& event = parser.event();
    if (event.type == YAML_STREAM_END_EVENT) return builder.Take();
    if (event.type == YAML_DOCUMENT_START_EVENT) {
      ++documents;
    } else if (documents > 1) {
      return FaultAt("there must be one document only", event.start_mark);
    } else {
      RETURN_IF_ERROR(builder.Add(event));
    }
  }
  return parser.Fault(prepared.text);
}

std::string EmitYaml(const Tree& tree) {
  std::string out;
  Emit(tree, 0, Behind::kNothing, out);
  out.push_back('\n');
  return out;
}

absl::StatusOr<job::ReadJob> ReadJobFile(absl::string_view text, job::Purpose purpose) {
  absl::StatusOr<Tree> tree = ParseYaml(text);
  if (!tree.ok()) return tree.status();
  return job::ReadJobSpec(*tree, purpose);
}

}  // namespace phalanx::wire

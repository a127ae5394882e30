#include "core/job/json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/job/scalar.h"

namespace phalanx::job {
namespace {

// JSON's own grammar of numbers is narrower than YAML's: no leading '+', '.' or 0.
bool IsJsonNumber(absl::string_view text) {
  if (!ParseNumber(text).has_value()) return false;
  absl::string_view rest = text;
  if (absl::StartsWith(rest, "-")) rest.remove_prefix(1);
  if (rest.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(rest[0]))) return false;
  if (rest[0] == '0' && rest.size() > 1 &&
      absl::ascii_isdigit(static_cast<unsigned char>(rest[1]))) {
    return false;
  }
  const size_t dot = rest.find('.');
  return dot == absl::string_view::npos ||
         (dot + 1 < rest.size() && absl::ascii_isdigit(static_cast<unsigned char>(rest[dot + 1])));
}

void AppendJson(const Tree& tree, const std::string& indent, std::string* out) {
  const std::string inner = indent + "  ";
  switch (tree.kind) {
    case Tree::Kind::kNull:
      *out += "null";
      return;
    case Tree::Kind::kScalar:
      *out += !tree.quoted && (IsJsonNumber(tree.scalar) || ParseBoolean(tree.scalar))
                  ? tree.scalar
                  : JsonString(tree.scalar);
      return;
    case Tree::Kind::kSequence:
      *out += "[";
      for (size_t i = 0; i < tree.items.size(); ++i) {
        absl::StrAppend(out, i > 0 ? "," : "", "\n", inner);
        AppendJson(tree.items[i], inner, out);
      }
      absl::StrAppend(out, tree.items.empty() ? "" : "\n" + indent, "]");
      return;
    case Tree::Kind::kMapping:
      *out += "{";
      for (size_t i = 0; i < tree.entries.size(); ++i) {
        absl::StrAppend(out, i > 0 ? "," : "", "\n", inner, JsonString(tree.entries[i].key), ": ");
        AppendJson(tree.entries[i].value, inner, out);
      }
      absl::StrAppend(out, tree.entries.empty() ? "" : "\n" + indent, "}");
      return;
  }
}

using Json = nlohmann::json;

// Builds the tree from the parser's events, which it ends by answering false.
class TreeBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(size_t nodes_max) : nodes_max_(nodes_max) {}

  bool null() override { return Add({}); }
  bool boolean(bool value) override { return AddScalar(value ? "true" : "false", false); }
  bool number_integer(int64_t value) override { return AddScalar(absl::StrCat(value), false); }
  bool number_unsigned(uint64_t value) override { return AddScalar(absl::StrCat(value), false); }
  bool number_float(double, const std::string& text) override { return AddScalar(text, false); }
  bool string(std::string& value) override { return AddScalar(std::move(value), true); }
  bool binary(Json::binary_t&) override { return false; }  // JSON has none
  bool start_object(size_t) override { return Open(Tree::Kind::kMapping); }
  bool key(std::string& name) override {
    open_.back()->entries.push_back({std::move(name), {}});
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Tree::Kind::kSequence); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    error_ = absl::StrCat("is no JSON at byte ", position);
    return false;
  }

  const std::string& error() const { return error_; }
  Tree Take() { return std::move(root_); }

 private:
  bool AddScalar(std::string text, bool quoted) { return Add(ScalarTree(std::move(text), quoted)); }
  bool Add(Tree tree) { return Place(std::move(tree)) != nullptr; }

  // Where the value now stands; nullptr where there are too many.
  Tree* Place(Tree tree) {
    if (++nodes_ > nodes_max_) {
      error_ = absl::StrCat("has more than ", nodes_max_, " values");
      return nullptr;
    }
    Tree* place = &root_;
    if (!open_.empty() && open_.back()->kind == Tree::Kind::kMapping) {
      place = &open_.back()->entries.back().value;
    } else if (!open_.empty()) {
      place = &open_.back()->items.emplace_back();
    }
    *place = std::move(tree);
    return place;
  }
  // Containers on the way to an open one do not grow, so that the pointers stay good.
  bool Open(Tree::Kind kind) {
    if (open_.size() == static_cast<size_t>(kJsonDepthMax)) {
      error_ = absl::StrCat("is nested deeper than ", kJsonDepthMax, " levels");
      return false;
    }
    Tree tree;
    tree.kind = kind;
    Tree* const place = Place(std::move(tree));
    if (place != nullptr) open_.push_back(place);
    return place != nullptr;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const size_t nodes_max_;
  size_t nodes_ = 0;
  Tree root_;
  std::vector<Tree*> open_;
  std::string error_;
};

}  // namespace

Tree ScalarTree(std::string text, bool quoted) {
  Tree tree;
  tree.kind = Tree::Kind::kScalar;
  tree.scalar = std::move(text);
  tree.quoted = quoted;
  return tree;
}

Tree TextTree(std::string text) { return ScalarTree(std::move(text), true); }
Tree NumberTree(int64_t number) { return ScalarTree(absl::StrCat(number), false); }
Tree NumberTree(double number) { return ScalarTree(FormatNumber(number), false); }
Tree FlagTree(bool flag) { return ScalarTree(flag ? "true" : "false", false); }

Tree ListTree(std::vector<Tree> items) {
  Tree tree;
  tree.kind = Tree::Kind::kSequence;
  tree.items = std::move(items);
  return tree;
}

Tree MappingTree(std::vector<Tree::Entry> entries) {
  Tree tree;
  tree.kind = Tree::Kind::kMapping;
  tree.entries = std::move(entries);
  return tree;
}

std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppend(&out, "\\u00", absl::Hex(c, absl::kZeroPad2));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string EmitJson(const Tree& tree) {
  std::string out;
  AppendJson(tree, "", &out);
  return out + "\n";
}

absl::StatusOr<Tree> ParseJson(absl::string_view text, size_t nodes_max) {
  TreeBuilder builder(nodes_max);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(builder.error());
  }
  return builder.Take();
}

}  // namespace phalanx::job

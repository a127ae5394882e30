#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/job/fields.h"
#include "core/job/scalar.h"

namespace phalanx::job {
namespace {

Tree Plain(std::string text) {
  Tree tree;
  tree.kind = Tree::Kind::kScalar;
  tree.scalar = std::move(text);
  return tree;
}

Tree Of(const std::string& value) {
  Tree tree = Plain(value);
  tree.quoted = NeedsQuotes(value);
  return tree;
}
Tree Of(double value) { return Plain(FormatNumber(value)); }
Tree Of(int32_t value) { return Plain(absl::StrCat(value)); }

template <typename List>
Tree ListOf(const List& values) {
  Tree tree;
  tree.kind = Tree::Kind::kSequence;
  for (const auto& value : values) tree.items.push_back(Of(value));
  return tree;
}

// Nothing for what is not known, such as an empty name, which is left out rather than null.
using Written = std::optional<Tree>;

// What of a spec is written.
enum class Extent : uint8_t {
  kAll,
  kActedOn,      // by ranks
  kWithoutData,  // names of files are many, and no layout depends on them
};

// One that nobody acts on.
bool IsUnsetFlag(const Field& field, void* owner) {
  return field.acted_on_if_set && !*std::get<bool*>(field.Of(owner));
}

class FieldWriter {
  // In front of the visitor that names them: clang 14 makes them for it nowhere else.
  template <typename T>
  Written Write(const Field& field, std::optional<T>* value) const {
    return value->has_value() ? Write(field, &**value) : Tree();
  }
  template <typename T>
  Written Write(const Field&, std::vector<T>* values) const {
    return values->empty() ? Tree() : ListOf(*values);
  }

 public:
  FieldWriter(const JobSpec* spec, Extent extent) : spec_(spec), extent_(extent) {}

  Tree Write(absl::Span<const Field> fields, void* owner, std::optional<Family> family) const {
    Tree tree;
    tree.kind = Tree::Kind::kMapping;
    for (const Field& field : fields) {
      if (family.has_value() && (field.families & SetOf(*family)) == 0) continue;
      if (extent_ == Extent::kActedOn && (!field.acted_on || IsUnsetFlag(field, owner))) continue;
      if (extent_ == Extent::kWithoutData && field.fields.data() == data_.data()) continue;
      if (Written value = Write(field, owner, family)) {
        tree.entries.push_back({std::string(field.name), *std::move(value)});
      }
    }
    return tree;
  }

  Written Write(const Field& field, void* owner, std::optional<Family> family) const {
    const Member member = field.Of(owner);
    if (const Section* section = std::get_if<Section>(&member)) {
      return Write(field, *section, family);
    }
    return std::visit([&](const auto& value) -> Written { return Write(field, value); }, member);
  }

 private:
  Written Write(const Field& field, std::monostate) const {
    return Plain(std::string(field.choices[0]));
  }
  Written Write(const Field&, const std::string* value) const {
    return value->empty() ? std::nullopt : Written(Of(*value));
  }
  Written Write(const Field& field, const int64_t* value) const {
    if (field.high != 0 && static_cast<double>(*value) < field.low) return std::nullopt;
    return Plain(absl::StrCat(*value));
  }
  Written Write(const Field& field, const int32_t* value) const {
    const int64_t wide = *value;
    if (field.type != FieldType::kModule) return Write(field, &wide);
    if (spec_ == nullptr || wide < 0 || static_cast<size_t>(wide) >= spec_->modules.size()) {
      return std::nullopt;
    }
    return Of(spec_->modules[static_cast<size_t>(wide)].name);
  }
  Written Write(const Field&, const uint64_t* value) const { return Plain(absl::StrCat(*value)); }
  Written Write(const Field&, const double* value) const { return Of(*value); }
  Written Write(const Field&, const bool* value) const { return Plain(*value ? "true" : "false"); }
  Written Write(const Field&, const absl::Duration* value) const {
    return Plain(phalanx::job::FormatDuration(*value));
  }
  Written Write(const Field&, const std::array<double, 2>* values) const { return ListOf(*values); }
  Written Write(const Field&, const std::map<std::string, std::string>* values) const {
    Tree tree;
    tree.kind = Tree::Kind::kMapping;
    for (const auto& [name, value] : *values) tree.entries.push_back({name, Of(value)});
    return tree;
  }
  Written Write(const Field& field, const Choice& choice) const {
    if (*choice.number < field.first_choice) return std::nullopt;
    return Plain(std::string(field.choices[size_t{*choice.number} - field.first_choice]));
  }
  Written Write(const Field& field, const Choices& choices) const {
    Tree tree;
    tree.kind = Tree::Kind::kSequence;
    for (uint8_t number : choices.get(choices.list)) {
      tree.items.push_back(*Write(field, Choice{&number}));
    }
    return tree;
  }
  Written Write(const Field& field, const Section& section, std::optional<Family> family) const {
    const bool may_be_unknown = field.absence == Absence::kRequiredToRun;
    void* owner = section.owner(section.holder);
    if (owner != nullptr && field.automatic != nullptr &&
        *std::get<bool*>(field.automatic(owner))) {
      return Plain("auto");
    }
    Tree tree = owner == nullptr ? Tree() : Write(field.fields, owner, family);
    if (may_be_unknown && tree.entries.empty()) return std::nullopt;
    return tree;
  }
  Written Write(const Field&, const Section&) const { return std::nullopt; }  // see above
  Written Write(const Field& field, const Sections& sections) const {
    Tree tree;
    tree.kind = Tree::Kind::kSequence;
    for (size_t i = 0; i < sections.size(sections.list); ++i) {
      void* item = sections.at(sections.list, i);
      tree.items.push_back(Write(field.fields, item, sections.family(item)));
    }
    return tree;
  }

  const JobSpec* spec_;
  const Extent extent_;
  const absl::Span<const Field> data_ = FieldsOf("spec.data");
};

Tree Write(const JobSpec& spec, Extent extent) {
  // Bindings lead to members that may be written to; a writer only reads them.
  auto* owner = const_cast<JobSpec*>(&spec);
  return FieldWriter(&spec, extent).Write(FieldsOf(""), owner, std::nullopt);
}

// Scalars carry their length, lists and mappings their size, so that no text can pass for another
// one's structure.
void AppendText(const Tree& tree, std::string* out) {
  switch (tree.kind) {
    case Tree::Kind::kNull:
      absl::StrAppend(out, "null\n");
      return;
    case Tree::Kind::kScalar:
      absl::StrAppend(out, tree.scalar.size(), ":", tree.scalar, "\n");
      return;
    case Tree::Kind::kSequence:
      absl::StrAppend(out, "list ", tree.items.size(), "\n");
      for (const Tree& item : tree.items) AppendText(item, out);
      return;
    case Tree::Kind::kMapping:
      absl::StrAppend(out, "mapping ", tree.entries.size(), "\n");
      for (const auto& [name, value] : tree.entries) {
        absl::StrAppend(out, name, " ");
        AppendText(value, out);
      }
      return;
  }
}

}  // namespace

std::optional<Tree> WriteField(const Field& field, void* owner) {
  return FieldWriter(nullptr, Extent::kAll).Write(field, owner, std::nullopt);
}

Tree WriteJobSpec(const JobSpec& spec) { return Write(spec, Extent::kAll); }

Tree WriteWithoutData(const JobSpec& spec) { return Write(spec, Extent::kWithoutData); }

std::string ActedText(const JobSpec& spec) {
  std::string text;
  AppendText(Write(spec, Extent::kActedOn), &text);
  return text;
}

}  // namespace phalanx::job

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/fields.h"
#include "core/job/scalar.h"

namespace phalanx::job {
namespace {

// A field that is written: something other than null.
struct Entry {
  const std::string& path;
  const Field& field;
  const Tree& node;
};

bool Within(const Field& field, double value) {
  if (!std::isfinite(value)) return false;
  if (field.low == 0 && field.high == 0) return true;
  if (field.type == FieldType::kPair && value == field.high) return false;
  return value <= field.high && (field.above_low ? value > field.low : value >= field.low);
}

bool IsPlain(const Tree& node) { return node.kind == Tree::Kind::kScalar && !node.quoted; }

bool IsString(const Tree& node) {
  return node.kind == Tree::Kind::kScalar && node.scalar.size() <= kStringMax &&
         (node.quoted ? !node.scalar.empty() : !NeedsQuotes(node.scalar));
}

// What follows from other fields and so may not be written.
std::optional<std::string> DerivedRule(absl::string_view path, absl::string_view name) {
  if (!absl::EndsWith(path, ".parallel")) return std::nullopt;
  if (name == "dp") return "may not be written: it follows as ranks / (tp*cp*pp)";
  if (name == "expt_dp") return "may not be written: it follows as ranks / (expt_tp*ep*pp)";
  return std::nullopt;
}

// What `mapping` has under the name, the first where it is written twice; nullptr: nothing, or
// null.
const Tree* WrittenIn(const Tree& mapping, absl::string_view name) {
  const auto found = std::find_if(mapping.entries.begin(), mapping.entries.end(),
                                  [name](const Tree::Entry& entry) { return entry.key == name; });
  if (found == mapping.entries.end() || found->value.kind == Tree::Kind::kNull) return nullptr;
  return &found->value;
}

class FieldReader {
 public:
  FieldReader(Purpose purpose, Report& report) : purpose_(purpose), report_(report) {}

  // `node` is at `path`. `family`: of the module that it belongs to, where that is known.
  void Read(const std::string& path, const Tree& node, absl::Span<const Field> fields, void* owner,
            std::optional<Family> family);

 private:
  void CheckFieldNames(const std::string& path, const Tree& mapping,
                       absl::Span<const Field> fields);
  bool IsRequired(const Field& field, std::optional<Family> family) const;
  void CheckFamily(const std::string& path, const Field& field, std::optional<Family> family);
  std::optional<Family> FamilyOf(const std::string& module) const;

  void Expect(const Entry& entry) {
    report_.Add(entry.path, absl::StrCat("must be ", DescribeValue(entry.field)));
  }
  // The node's text if it is a plain scalar; otherwise reports what was expected.
  std::optional<absl::string_view> Plain(const Entry& entry);
  std::optional<std::string> Text(const Entry& entry);
  std::optional<size_t> ChoiceOf(const Entry& entry, const Tree& node) const;
  template <typename T>
  std::optional<std::vector<T>> Numbers(const Entry& entry);

  // The word `auto` in place of the mapping that `owner` is.
  void FillAutomatic(const Entry& entry, void* owner);

  // Each reads one type of member.
  void Fill(const Entry& entry, std::monostate);
  void Fill(const Entry& entry, int32_t* out);
  void Fill(const Entry& entry, int64_t* out);
  void Fill(const Entry& entry, uint64_t* out);
  void Fill(const Entry& entry, double* out);
  void Fill(const Entry& entry, bool* out);
  void Fill(const Entry& entry, std::vector<int32_t>* out);
  void Fill(const Entry& entry, std::array<double, 2>* out);
  void Fill(const Entry& entry, std::vector<std::string>* out);
  void Fill(const Entry& entry, std::map<std::string, std::string>* out);
  void Fill(const Entry& entry, Choice out);
  void Fill(const Entry& entry, Choices out);
  void Fill(const Entry& entry, Sections out);
  template <typename T>  // strings and durations, optional or not
  void Fill(const Entry& entry, T* out);

  const Purpose purpose_;
  Report& report_;
};

void FieldReader::Read(const std::string& path, const Tree& node, absl::Span<const Field> fields,
                       void* owner, std::optional<Family> family) {
  if (node.kind != Tree::Kind::kMapping) {
    report_.Add(path, path.empty()
                          ? "the document must be a mapping: apiVersion, kind, metadata, spec"
                          : "must be a mapping");
    return;
  }
  CheckFieldNames(path, node, fields);
  for (const Field& field : fields) {
    const Tree* value = WrittenIn(node, field.name);
    // Most fields are not written: these cost no path.
    if (value == nullptr && !IsRequired(field, family)) continue;
    const std::string inner = JoinPath(path, field.name);
    if (value == nullptr) {
      report_.Add(inner, absl::StrCat("is required: ", DescribeValue(field)));
      continue;
    }
    CheckFamily(inner, field, family);
    const Member member = field.Of(owner);
    if (const Section* section = std::get_if<Section>(&member)) {
      void* section_owner = section->make(section->holder);
      if (field.automatic != nullptr && value->kind != Tree::Kind::kMapping) {
        FillAutomatic({inner, field, *value}, section_owner);
      } else {
        Read(inner, *value, field.fields, section_owner, family);
      }
    } else {
      std::visit(
          [&](auto to) {
            if constexpr (!std::is_same_v<decltype(to), Section>) Fill({inner, field, *value}, to);
          },
          member);
    }
  }
}

void FieldReader::FillAutomatic(const Entry& entry, void* owner) {
  if (entry.node.kind != Tree::Kind::kScalar || entry.node.scalar != "auto") return Expect(entry);
  *std::get<bool*>(entry.field.automatic(owner)) = true;
}

void FieldReader::CheckFieldNames(const std::string& path, const Tree& mapping,
                                  absl::Span<const Field> fields) {
  std::set<absl::string_view> seen;
  for (const auto& [name, value] : mapping.entries) {
    if (!seen.insert(name).second) {
      report_.AddAt(JoinPath(path, name), value, "written twice");
      continue;
    }
    const auto is_it = [&key = name](const Field& field) { return field.name == key; };
    if (std::any_of(fields.begin(), fields.end(), is_it)) continue;
    const std::string inner = JoinPath(path, name);
    std::vector<absl::string_view> known;
    for (const Field& field : fields) known.push_back(field.name);
    const std::optional<absl::string_view> nearest = NearestName(name, known);
    if (const std::optional<std::string> rule = DerivedRule(path, name)) {
      report_.Add(inner, *rule);
    } else if (nearest.has_value()) {
      report_.Add(inner, absl::StrCat("unknown field; did you mean ", *nearest, "?"));
    } else {
      report_.Add(inner, "unknown field");
    }
  }
}

bool FieldReader::IsRequired(const Field& field, std::optional<Family> family) const {
  const FamilySet module = family.has_value() ? SetOf(*family) : 0;
  return field.absence == Absence::kRequired ||
         (field.absence == Absence::kRequiredToRun && purpose_ != Purpose::kPlan) ||
         (field.required_of & module) != 0;
}

void FieldReader::CheckFamily(const std::string& path, const Field& field,
                              std::optional<Family> family) {
  const FamilySet module = family.has_value() ? SetOf(*family) : 0;
  if (module == 0 || (field.families & module) != 0) return;
  report_.Add(path, TraitsOf(*family).known()
                        ? absl::StrCat("family ", TraitsOf(*family).name, " has no such field")
                        : "needs architecture.family");
}

// The family decides which fields a module has; so it is looked at before them.
std::optional<Family> FieldReader::FamilyOf(const std::string& module) const {
  const Tree* family = report_.Written(module + ".architecture.family");
  if (family == nullptr && purpose_ == Purpose::kPlan) return kNoFamily;
  for (size_t i = 0; family != nullptr && i < FamilyNames().size(); ++i) {
    if (FamilyNames()[i] == family->scalar) return static_cast<Family>(i + 1);
  }
  return std::nullopt;
}

std::optional<absl::string_view> FieldReader::Plain(const Entry& entry) {
  // JSON has no way to write 30s or 16Gi without quotes.
  const FieldType type = entry.field.type;
  const bool with_unit = type == FieldType::kDuration ||
                         (type == FieldType::kSize && absl::EndsWith(entry.node.scalar, "i"));
  if (IsPlain(entry.node) || (with_unit && entry.node.kind == Tree::Kind::kScalar)) {
    return entry.node.scalar;
  }
  Expect(entry);
  return std::nullopt;
}

std::optional<std::string> FieldReader::Text(const Entry& entry) {
  const Tree& node = entry.node;
  if (IsString(node)) return node.scalar;
  const bool scalar = node.kind == Tree::Kind::kScalar;
  if (scalar && node.scalar.empty()) {
    report_.Add(entry.path, "may not be empty");
  } else if (scalar && node.scalar.size() > kStringMax) {
    report_.Add(entry.path, absl::StrCat("may be at most ", kStringMax, " bytes long"));
  } else {
    report_.Add(entry.path, scalar ? "must be a string: put it in quotes" : "must be a string");
  }
  return std::nullopt;
}

template <typename T>
void FieldReader::Fill(const Entry& entry, T* out) {
  if constexpr (std::is_assignable_v<T&, std::string>) {
    if (std::optional<std::string> text = Text(entry)) *out = *std::move(text);
  } else {
    const std::optional<absl::string_view> text = Plain(entry);
    if (!text.has_value()) return;
    const std::optional<absl::Duration> value = ParseDuration(*text);
    if (value.has_value() && *value > absl::ZeroDuration() && *value <= kDurationMax) {
      *out = *value;
    } else {
      Expect(entry);
    }
  }
}

void FieldReader::Fill(const Entry& entry, int64_t* out) {
  const std::optional<absl::string_view> text = Plain(entry);
  if (!text.has_value()) return;
  const std::optional<int64_t> value =
      entry.field.type == FieldType::kSize ? ParseSize(*text) : ParseInteger(*text);
  if (value.has_value() && Within(entry.field, static_cast<double>(*value))) {
    *out = *value;
  } else {
    Expect(entry);
  }
}

void FieldReader::Fill(const Entry& entry, int32_t* out) {
  if (entry.field.type == FieldType::kOffset) return;
  if (entry.field.type == FieldType::kModule) {
    Text(entry);
    return;
  }
  int64_t value = *out;  // the schema's bounds are within 32 bits
  Fill(entry, &value);
  *out = static_cast<int32_t>(value);
}

void FieldReader::Fill(const Entry& entry, uint64_t* out) {
  const std::optional<absl::string_view> text = Plain(entry);
  if (!text.has_value()) return;
  if (const std::optional<uint64_t> value = ParseUnsigned(*text)) {
    *out = *value;
  } else {
    Expect(entry);
  }
}

void FieldReader::Fill(const Entry& entry, double* out) {
  const std::optional<absl::string_view> text = Plain(entry);
  if (!text.has_value()) return;
  const std::optional<double> value = ParseNumber(*text);
  if (value.has_value() && Within(entry.field, *value)) {
    *out = *value;
  } else {
    Expect(entry);
  }
}

void FieldReader::Fill(const Entry& entry, bool* out) {
  const std::optional<absl::string_view> text = Plain(entry);
  if (!text.has_value()) return;
  if (const std::optional<bool> value = ParseBoolean(*text)) {
    *out = *value;
  } else {
    Expect(entry);
  }
}

template <typename T>
std::optional<std::vector<T>> FieldReader::Numbers(const Entry& entry) {
  std::vector<T> values;
  bool sound = entry.node.kind == Tree::Kind::kSequence && entry.node.items.size() <= kListMax;
  for (const Tree& item : entry.node.items) {
    const std::optional<double> value =
        sound && IsPlain(item) ? ParseNumber(item.scalar) : std::nullopt;
    sound = value.has_value() && Within(entry.field, *value) &&
            (std::is_floating_point_v<T> || ParseInteger(item.scalar).has_value());
    if (!sound) break;
    values.push_back(static_cast<T>(*value));
  }
  if (sound) return values;
  Expect(entry);
  return std::nullopt;
}

void FieldReader::Fill(const Entry& entry, std::vector<int32_t>* out) {
  if (std::optional<std::vector<int32_t>> values = Numbers<int32_t>(entry)) {
    *out = *std::move(values);
  }
}

void FieldReader::Fill(const Entry& entry, std::array<double, 2>* out) {
  const std::optional<std::vector<double>> values = Numbers<double>(entry);
  if (!values.has_value()) return;
  if (values->size() != out->size()) return Expect(entry);
  std::copy(values->begin(), values->end(), out->begin());
}

void FieldReader::Fill(const Entry& entry, std::map<std::string, std::string>* out) {
  if (entry.node.kind != Tree::Kind::kMapping) return Expect(entry);
  if (entry.node.entries.size() > kLabelsMax) {
    report_.Add(entry.path, absl::StrCat("may have at most ", kLabelsMax, " entries"));
    return;
  }
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : entry.node.entries) {
    const std::string path = JoinPath(entry.path, key);
    const bool empty = value.kind == Tree::Kind::kScalar && value.quoted && value.scalar.empty();
    if (key.empty() || key.size() > kLabelBytesMax) {
      report_.Add(path, absl::StrCat("a key has 1 to ", kLabelBytesMax, " bytes"));
    } else if (value.scalar.size() > kLabelBytesMax) {
      report_.Add(path, absl::StrCat("may be at most ", kLabelBytesMax, " bytes long"));
    } else {
      if (!IsString(value) && !empty)
        report_.AddAt(path, value, "must be a string: put it in quotes");
      if (!values.emplace(key, value.scalar).second) report_.AddAt(path, value, "written twice");
    }
  }
  *out = std::move(values);
}

void FieldReader::Fill(const Entry& entry, std::vector<std::string>* out) {
  const bool list = entry.node.kind == Tree::Kind::kSequence;
  if (!list && !IsString(entry.node)) return Expect(entry);
  std::vector<std::string> names;
  const size_t count = list ? entry.node.items.size() : 1;
  if (count == 0) report_.Add(entry.path, "may not be empty");
  size_t bytes = 0;  // of all names
  for (size_t i = 0; i < count; ++i) {
    const Tree& item = list ? entry.node.items[i] : entry.node;
    const std::string path = list ? absl::StrCat(entry.path, "[", i, "]") : entry.path;
    if (!IsString(item)) {
      report_.Add(path, "must be a string");
      continue;
    }
    absl::StatusOr<std::vector<std::string>> expanded = ExpandBraces(item.scalar);
    if (!expanded.ok()) {
      report_.Add(path, std::string(expanded.status().message()));
      continue;
    }
    if (names.size() + expanded->size() > static_cast<size_t>(kExpansionMax)) {
      report_.Add(entry.path, absl::StrCat("may stand for at most ", kExpansionMax, " names"));
      return;
    }
    for (const std::string& one : *expanded) bytes += one.size();
    if (bytes > kExpansionBytesMax) {
      report_.Add(entry.path,
                  absl::StrCat("may stand for at most ", kExpansionBytesMax, " bytes of names"));
      return;
    }
    for (std::string& one : *expanded) names.push_back(std::move(one));
  }
  *out = std::move(names);
}

std::optional<size_t> FieldReader::ChoiceOf(const Entry& entry, const Tree& node) const {
  const auto& choices = entry.field.choices;
  const auto found = std::find(choices.begin(), choices.end(), node.scalar);
  if (node.kind != Tree::Kind::kScalar || found == choices.end()) return std::nullopt;
  return static_cast<size_t>(found - choices.begin());
}

void FieldReader::Fill(const Entry& entry, std::monostate) {
  uint8_t only = 0;
  Fill(entry, Choice{&only});
}

void FieldReader::Fill(const Entry& entry, Choice out) {
  if (const std::optional<size_t> choice = ChoiceOf(entry, entry.node)) {
    *out.number = static_cast<uint8_t>(*choice + entry.field.first_choice);
    return;
  }
  std::string rule = absl::StrCat("must be ", DescribeValue(entry.field));
  if (entry.node.kind == Tree::Kind::kScalar && entry.field.choices.size() > 1) {
    if (const auto nearest = NearestName(entry.node.scalar, entry.field.choices)) {
      absl::StrAppend(&rule, "; did you mean ", *nearest, "?");
    }
  }
  report_.Add(entry.path, std::move(rule));
}

void FieldReader::Fill(const Entry& entry, Choices out) {
  std::vector<uint8_t> numbers;
  bool sound = entry.node.kind == Tree::Kind::kSequence;
  for (const Tree& item : entry.node.items) {
    const std::optional<size_t> choice = ChoiceOf(entry, item);
    const auto number = static_cast<uint8_t>(choice.value_or(0) + entry.field.first_choice);
    sound &=
        choice.has_value() && std::find(numbers.begin(), numbers.end(), number) == numbers.end();
    if (!sound) break;
    numbers.push_back(number);
  }
  if (!sound) return Expect(entry);
  if (out.length != 0 && numbers.size() != out.length) {
    report_.Add(entry.path, absl::StrCat("must name each of ",
                                         absl::StrJoin(entry.field.choices, ", "), " once"));
    return;
  }
  out.set(out.list, numbers);
}

void FieldReader::Fill(const Entry& entry, Sections out) {
  const size_t count = entry.node.items.size();
  if (entry.node.kind != Tree::Kind::kSequence) return Expect(entry);
  if (count == 0 && entry.field.absence == Absence::kRequired) {
    report_.Add(entry.path, "may not be empty");
  } else if (count > entry.field.count_max) {
    report_.Add(entry.path, absl::StrCat("may have at most ", entry.field.count_max, " entries"));
    return;
  }
  out.resize(out.list, count);
  for (size_t i = 0; i < count; ++i) {
    const std::string path = absl::StrCat(entry.path, "[", i, "]");
    Read(path, entry.node.items[i], entry.field.fields, out.at(out.list, i), FamilyOf(path));
  }
}

}  // namespace

void ReadFields(Purpose purpose, Report& report, JobSpec& spec) {
  FieldReader(purpose, report).Read("", *report.Find(""), FieldsOf(""), &spec, std::nullopt);
}

}  // namespace phalanx::job

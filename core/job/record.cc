#include "core/job/record.h"

#include <cmath>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/job/scalar.h"

namespace phalanx::job {
namespace {

bool Within(const Field& field, double value) {
  if (!std::isfinite(value)) return false;
  if (field.low == 0 && field.high == 0) return true;
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

}  // namespace

Record::Record(Report& report, std::string path, absl::string_view schema_path, Purpose purpose,
               std::optional<Family> family)
    : report_(report), path_(std::move(path)), fields_(FieldsOf(schema_path)) {
  const Tree* node = report.Find(path_);
  if (node != nullptr && node->kind == Tree::Kind::kMapping) {
    mapping_ = node;
  } else if (node != nullptr && (node->kind != Tree::Kind::kNull || path_.empty())) {
    report.Add(path_, "must be a mapping");
    return;
  }
  CheckNames(purpose, family);
}

void Record::CheckNames(Purpose purpose, std::optional<Family> family) {
  std::vector<absl::string_view> known;
  for (const Field& field : fields_) known.push_back(field.name);
  std::set<absl::string_view> seen;
  if (mapping_ != nullptr) {
    for (const auto& [name, value] : mapping_->entries) {
      if (!seen.insert(name).second) {
        report_.AddAt(PathOf(name), value, "written twice");
        continue;
      }
      bool found = false;
      for (const Field& field : fields_) found |= field.name == name;
      if (found) continue;
      if (const std::optional<std::string> rule = DerivedRule(path_, name)) {
        report_.Add(PathOf(name), *rule);
        continue;
      }
      const std::optional<absl::string_view> nearest = NearestName(name, known);
      report_.Add(PathOf(name), nearest.has_value()
                                    ? absl::StrCat("unknown field; did you mean ", *nearest, "?")
                                    : "unknown field");
    }
  }
  for (const Field& field : fields_) CheckRequired(field, purpose, family);
}

void Record::CheckRequired(const Field& field, Purpose purpose, std::optional<Family> family) {
  const std::string path = PathOf(field.name);
  const FamilySet bit = family.has_value() ? SetOf(*family) : 0;
  if (Has(field.name)) {
    if (bit != 0 && (field.families & bit) == 0) {
      report_.Add(path, TraitsOf(*family).known()
                            ? absl::StrCat("family ", TraitsOf(*family).name, " has no such field")
                            : "needs architecture.family");
    }
    return;
  }
  const bool required = field.absence == Absence::kRequired ||
                        (field.absence == Absence::kRequiredToRun && purpose == Purpose::kSubmit) ||
                        (field.required_of & bit) != 0;
  if (required) report_.Add(path, absl::StrCat("is required: ", DescribeValue(field)));
}

const Field& Record::FieldOf(absl::string_view name) const {
  for (const Field& field : fields_) {
    if (field.name == name) return field;
  }
  std::abort();
}

const Tree* Record::Written(absl::string_view name) const {
  if (mapping_ == nullptr) return nullptr;
  const Tree* node = report_.Find(PathOf(name));
  return node == nullptr || node->kind == Tree::Kind::kNull ? nullptr : node;
}

void Record::Expect(absl::string_view name) const {
  report_.Add(PathOf(name), absl::StrCat("must be ", DescribeValue(FieldOf(name))));
}

size_t Record::Count(absl::string_view name) const {
  const Tree* node = Written(name);
  if (node == nullptr) return 0;
  if (node->kind != Tree::Kind::kSequence) {
    Expect(name);
    return 0;
  }
  return node->items.size();
}

std::optional<absl::string_view> Record::Plain(absl::string_view name) const {
  const Tree* node = Written(name);
  if (node == nullptr) return std::nullopt;
  // JSON has no way to write 30s or 16Gi without quotes.
  const FieldType type = FieldOf(name).type;
  const bool with_unit = type == FieldType::kDuration ||
                         (type == FieldType::kSize && absl::EndsWith(node->scalar, "i"));
  if (!IsPlain(*node) && !(with_unit && node->kind == Tree::Kind::kScalar)) {
    Expect(name);
    return std::nullopt;
  }
  return node->scalar;
}

std::optional<std::string> Record::Text(absl::string_view name) const {
  const Tree* node = Written(name);
  if (node == nullptr) return std::nullopt;
  if (IsString(*node)) return node->scalar;
  const bool scalar = node->kind == Tree::Kind::kScalar;
  if (scalar && node->scalar.empty()) {
    report_.Add(PathOf(name), "may not be empty");
  } else if (scalar && node->scalar.size() > kStringMax) {
    report_.Add(PathOf(name), absl::StrCat("may be at most ", kStringMax, " bytes long"));
  } else {
    report_.Add(PathOf(name), scalar ? "must be a string: put it in quotes" : "must be a string");
  }
  return std::nullopt;
}

std::optional<int64_t> Record::Integer(absl::string_view name) const {
  const std::optional<absl::string_view> text = Plain(name);
  if (!text.has_value()) return std::nullopt;
  const Field& field = FieldOf(name);
  const std::optional<int64_t> value =
      field.type == FieldType::kSize ? ParseSize(*text) : ParseInteger(*text);
  if (!value.has_value() || !Within(field, static_cast<double>(*value))) {
    Expect(name);
    return std::nullopt;
  }
  return value;
}

void Record::Get(absl::string_view name, std::string* out) const {
  if (std::optional<std::string> text = Text(name)) *out = *std::move(text);
}

void Record::Get(absl::string_view name, std::optional<std::string>* out) const {
  if (std::optional<std::string> text = Text(name)) *out = *std::move(text);
}

void Record::Get(absl::string_view name, int32_t* out) const {
  if (const std::optional<int64_t> value = Integer(name)) *out = static_cast<int32_t>(*value);
}

void Record::Get(absl::string_view name, int64_t* out) const {
  if (const std::optional<int64_t> value = Integer(name)) *out = *value;
}

void Record::Get(absl::string_view name, uint64_t* out) const {
  const std::optional<absl::string_view> text = Plain(name);
  if (!text.has_value()) return;
  if (const std::optional<uint64_t> value = ParseUnsigned(*text)) {
    *out = *value;
  } else {
    Expect(name);
  }
}

void Record::Get(absl::string_view name, double* out) const {
  const std::optional<absl::string_view> text = Plain(name);
  if (!text.has_value()) return;
  const std::optional<double> value = ParseNumber(*text);
  if (value.has_value() && Within(FieldOf(name), *value)) {
    *out = *value;
  } else {
    Expect(name);
  }
}

void Record::Get(absl::string_view name, bool* out) const {
  const std::optional<absl::string_view> text = Plain(name);
  if (!text.has_value()) return;
  if (const std::optional<bool> value = ParseBoolean(*text)) {
    *out = *value;
  } else {
    Expect(name);
  }
}

void Record::Get(absl::string_view name, absl::Duration* out) const {
  const std::optional<absl::string_view> text = Plain(name);
  if (!text.has_value()) return;
  const std::optional<absl::Duration> value = ParseDuration(*text);
  if (value.has_value() && *value > absl::ZeroDuration() && *value <= absl::Hours(24 * 3650)) {
    *out = *value;
  } else {
    Expect(name);
  }
}

void Record::Get(absl::string_view name, std::vector<int32_t>* out) const {
  const Tree* node = Written(name);
  if (node == nullptr) return;
  std::vector<int32_t> values;
  bool sound = node->kind == Tree::Kind::kSequence && node->items.size() <= kListMax;
  for (const Tree& item : node->items) {
    const std::optional<int64_t> value =
        sound && IsPlain(item) ? ParseInteger(item.scalar) : std::nullopt;
    sound &= value.has_value() && Within(FieldOf(name), static_cast<double>(*value));
    if (sound) values.push_back(static_cast<int32_t>(*value));
  }
  if (sound) {
    *out = std::move(values);
  } else {
    Expect(name);
  }
}

void Record::Get(absl::string_view name, std::vector<double>* out) const {
  const Tree* node = Written(name);
  if (node == nullptr) return;
  std::vector<double> values;
  bool sound = node->kind == Tree::Kind::kSequence && node->items.size() <= kListMax;
  for (const Tree& item : node->items) {
    const std::optional<double> value =
        sound && IsPlain(item) ? ParseNumber(item.scalar) : std::nullopt;
    sound &= value.has_value() && Within(FieldOf(name), *value);
    if (sound) values.push_back(*value);
  }
  if (sound) {
    *out = std::move(values);
  } else {
    Expect(name);
  }
}

void Record::Get(absl::string_view name, std::map<std::string, std::string>* out) const {
  const Tree* node = Written(name);
  if (node == nullptr) return;
  if (node->kind != Tree::Kind::kMapping) return Expect(name);
  if (node->entries.size() > kLabelsMax) {
    report_.Add(PathOf(name), absl::StrCat("may have at most ", kLabelsMax, " entries"));
    return;
  }
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : node->entries) {
    const std::string path = JoinPath(PathOf(name), key);
    const bool empty = value.kind == Tree::Kind::kScalar && value.quoted && value.scalar.empty();
    if (key.empty() || key.size() > kLabelBytesMax) {
      report_.Add(path, absl::StrCat("a key has 1 to ", kLabelBytesMax, " bytes"));
    } else if (!IsString(value) && !empty) {
      report_.Add(path, "must be a string: put it in quotes");
    } else if (value.scalar.size() > kLabelBytesMax) {
      report_.Add(path, absl::StrCat("may be at most ", kLabelBytesMax, " bytes long"));
    } else if (!values.emplace(key, value.scalar).second) {
      report_.AddAt(path, value, "written twice");
    }
  }
  *out = std::move(values);
}

void Record::GetPatterns(absl::string_view name, std::vector<std::string>* out) const {
  const Tree* node = Written(name);
  if (node == nullptr) return;
  const bool list = node->kind == Tree::Kind::kSequence;
  if (!list && !IsString(*node)) return Expect(name);
  std::vector<std::string> names;
  const size_t count = list ? node->items.size() : 1;
  if (count == 0) report_.Add(PathOf(name), "may not be empty");
  for (size_t i = 0; i < count; ++i) {
    const Tree& item = list ? node->items[i] : *node;
    const std::string path = list ? absl::StrCat(PathOf(name), "[", i, "]") : PathOf(name);
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
      report_.Add(PathOf(name), absl::StrCat("may stand for at most ", kExpansionMax, " names"));
      return;
    }
    for (std::string& one : *expanded) names.push_back(std::move(one));
  }
  *out = std::move(names);
}

std::optional<size_t> Record::GetChoice(absl::string_view name) const {
  const Tree* node = Written(name);
  if (node == nullptr) return std::nullopt;
  const Field& field = FieldOf(name);
  if (node->kind != Tree::Kind::kScalar) {
    Expect(name);
    return std::nullopt;
  }
  for (size_t i = 0; i < field.choices.size(); ++i) {
    if (field.choices[i] == node->scalar) return i;
  }
  std::string rule = absl::StrCat("must be ", DescribeValue(field));
  if (field.choices.size() > 1) {
    if (const auto nearest = NearestName(node->scalar, field.choices)) {
      absl::StrAppend(&rule, "; did you mean ", *nearest, "?");
    }
  }
  report_.Add(PathOf(name), std::move(rule));
  return std::nullopt;
}

std::optional<std::vector<size_t>> Record::GetChoices(absl::string_view name) const {
  const Tree* node = Written(name);
  if (node == nullptr) return std::nullopt;
  const Field& field = FieldOf(name);
  std::vector<size_t> values;
  bool sound = node->kind == Tree::Kind::kSequence && node->items.size() <= field.choices.size();
  std::set<size_t> seen;
  for (const Tree& item : node->items) {
    size_t choice = 0;
    while (choice < field.choices.size() && field.choices[choice] != item.scalar) ++choice;
    sound &= item.kind == Tree::Kind::kScalar && choice < field.choices.size() &&
             seen.insert(choice).second;
    values.push_back(choice);
    if (!sound) break;
  }
  if (!sound) {
    Expect(name);
    return std::nullopt;
  }
  return values;
}

}  // namespace phalanx::job

#include "core/checkpoint/fields.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/job/report.h"
#include "core/job/scalar.h"

namespace phalanx::checkpoint {
namespace {

using job::Tree;

const Tree& Nothing() {
  static const Tree& tree = *new Tree();
  return tree;
}

}  // namespace

Fields::Fields(const Tree& object, std::string path, absl::Status* first)
    : object_(object), path_(std::move(path)), first_(first) {
  if (object.kind != Tree::Kind::kMapping) Fail("", "must be an object");
}

std::string Fields::PathOf(absl::string_view name) const {
  if (name.empty()) return path_;
  return job::JoinPath(path_, job::ShowName(name));
}

void Fields::Fail(absl::string_view name, absl::string_view rule) {
  if (!first_->ok()) return;
  const Tree* const value = Find(name);
  const std::string path = PathOf(name);
  *first_ = absl::InvalidArgumentError(absl::StrCat(path, path.empty() ? "" : ": ",
                                                    value == nullptr ? "" : job::ShowValue(*value),
                                                    value == nullptr ? "" : ": ", rule));
}

const Tree* Fields::Find(absl::string_view name) {
  for (const Tree::Entry& entry : object_.entries) {
    if (entry.key == name) return &entry.value;
  }
  return nullptr;
}

const Tree& Fields::OfKind(absl::string_view name, Tree::Kind kind, absl::string_view rule) {
  asked_.emplace(name);
  const Tree* const value = Find(name);
  if (value != nullptr && value->kind == kind) return *value;
  Fail(name, value == nullptr ? "is missing" : rule);
  return Nothing();
}

const Tree& Fields::Scalar(absl::string_view name, bool quoted, absl::string_view rule) {
  const Tree& value = OfKind(name, Tree::Kind::kScalar, rule);
  if (value.kind != Tree::Kind::kScalar || value.quoted == quoted) return value;
  Fail(name, rule);
  return Nothing();
}

std::string Fields::Text(absl::string_view name) {
  return Scalar(name, true, "must be a string").scalar;
}

int64_t Fields::Integer(absl::string_view name, int64_t low, int64_t high) {
  const std::string rule = high == std::numeric_limits<int64_t>::max()
                               ? absl::StrCat("must be an integer of at least ", low)
                               : absl::StrCat("must be an integer from ", low, " to ", high);
  const Tree& value = Scalar(name, false, rule);
  const std::optional<int64_t> number = job::ParseInteger(value.scalar);
  if (number.has_value() && *number >= low && *number <= high) return *number;
  Fail(name, rule);
  return 0;
}

uint64_t Fields::Unsigned(absl::string_view name) {
  constexpr absl::string_view kRule = "must be an integer from 0 on, of 64 bits";
  const std::optional<uint64_t> number = job::ParseUnsigned(Scalar(name, false, kRule).scalar);
  if (!number.has_value()) Fail(name, kRule);
  return number.value_or(0);
}

double Fields::Number(absl::string_view name) {
  constexpr absl::string_view kRule = "must be a number";
  const Tree& value = OfKind(name, Tree::Kind::kScalar, kRule);
  const std::optional<double> number = job::ParseNumber(value.scalar);
  if (!number.has_value() || value.quoted == std::isfinite(*number)) Fail(name, kRule);
  return number.value_or(0);
}

bool Fields::Flag(absl::string_view name) {
  constexpr absl::string_view kRule = "must be true or false";
  const std::optional<bool> flag = job::ParseBoolean(Scalar(name, false, kRule).scalar);
  if (!flag.has_value()) Fail(name, kRule);
  return flag.value_or(false);
}

const Tree& Fields::Object(absl::string_view name) {
  return OfKind(name, Tree::Kind::kMapping, "must be an object");
}

const Tree& Fields::List(absl::string_view name) {
  return OfKind(name, Tree::Kind::kSequence, "must be a list");
}

void Fields::Finish() {
  std::set<absl::string_view> seen;
  for (const Tree::Entry& entry : object_.entries) {
    if (asked_.count(entry.key) == 0) Fail(entry.key, "unknown field");
    if (!seen.insert(entry.key).second) Fail(entry.key, "stands twice");
  }
}

}  // namespace phalanx::checkpoint

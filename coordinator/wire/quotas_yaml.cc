#include "coordinator/wire/quotas_yaml.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/report.h"
#include "core/job/scalar.h"
#include "core/job/schema.h"
#include "core/wire/job_yaml.h"

namespace phalanx::coordinator {
namespace {

using job::Tree;

// Notes everything that is wrong with a tree.
class Reader {
 public:
  Quotas Read(const Tree& tree) {
    Quotas quotas;
    Entries("", tree, [&](const std::string& key, const std::string& path, const Tree& value) {
      if (key == "default") return ReadQuota(path, value, &quotas.others);
      if (key != "owners") return Add(path, value, Unknown(key, {"default", "owners"}));
      Entries(path, value, [&](const std::string& owner, const std::string& at, const Tree& quota) {
        if (owner.empty()) return Add(at, quota, "must be the name of an owner");
        ReadQuota(at, quota, &quotas.owners[owner]);
      });
    });
    return quotas;
  }
  const std::vector<Violation>& violations() const { return violations_; }

 private:
  template <typename Visit>
  void Entries(const std::string& path, const Tree& tree, const Visit& visit) {
    if (tree.kind == Tree::Kind::kNull) return;
    if (tree.kind != Tree::Kind::kMapping) return Add(path, tree, "must be a mapping");
    std::set<std::string> seen;
    for (const auto& [key, value] : tree.entries) {
      const std::string at = job::JoinPath(path, job::ShowName(key));
      if (!seen.insert(key).second) {
        Add(at, value, "is there twice");
      } else {
        visit(key, at, value);
      }
    }
  }

  void ReadQuota(const std::string& path, const Tree& tree, Quota* quota) {
    Entries(path, tree, [&](const std::string& key, const std::string& at, const Tree& value) {
      if (key == "devices_max") return ReadCount(at, value, &quota->devices_max);
      if (key == "jobs_max") return ReadCount(at, value, &quota->jobs_max);
      if (key == "queued_max") return ReadCount(at, value, &quota->queued_max);
      if (key == "priority_max") return ReadPriority(at, value, &quota->priority_max);
      if (key == "weight") return ReadWeight(at, value, &quota->weight);
      Add(at, value,
          Unknown(key, {"devices_max", "jobs_max", "queued_max", "priority_max", "weight"}));
    });
  }

  template <typename Count>
  void ReadCount(const std::string& path, const Tree& tree, Count* count) {
    const auto read = tree.kind == Tree::Kind::kScalar ? job::ParseInteger(tree.scalar)
                                                       : std::optional<int64_t>();
    if (!read.has_value() || *read < 0)
      return Add(path, tree, "must be a whole number of at least 0");
    *count = *read;
  }

  void ReadPriority(const std::string& path, const Tree& tree, int64_t* priority) {
    const auto read = tree.kind == Tree::Kind::kScalar ? job::ParseInteger(tree.scalar)
                                                       : std::optional<int64_t>();
    if (!read.has_value()) return Add(path, tree, "must be a whole number");
    *priority = *read;
  }

  void ReadWeight(const std::string& path, const Tree& tree, double* weight) {
    const auto read =
        tree.kind == Tree::Kind::kScalar ? job::ParseNumber(tree.scalar) : std::optional<double>();
    if (!read.has_value() || !(*read > 0 && *read <= kWeightMax))
      return Add(path, tree, "must be a number above 0, and at most 1000000");
    *weight = *read;
  }

  static std::string Unknown(absl::string_view name, const std::vector<absl::string_view>& known) {
    const auto near = job::NearestName(name, known);
    if (near.has_value()) return absl::StrCat("unknown field; did you mean ", *near, "?");
    return absl::StrCat("unknown field; there are ", absl::StrJoin(known, ", "));
  }

  void Add(const std::string& field, const Tree& tree, std::string rule) {
    violations_.push_back({.field = field,
                           .value = job::ShowValue(tree),
                           .rule = std::move(rule),
                           .line = tree.line});
  }

  std::vector<Violation> violations_;
};

}  // namespace

absl::StatusOr<Quotas> ReadQuotas(absl::string_view text) {
  ASSIGN_OR_RETURN(const Tree tree, wire::ParseYaml(text));
  Reader reader;
  Quotas quotas = reader.Read(tree);
  RETURN_IF_ERROR(ViolationsStatus(reader.violations()));
  return quotas;
}

}  // namespace phalanx::coordinator

#include "core/job/references.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/rules.h"
#include "core/job/scalar.h"
#include "core/job/schema.h"

namespace phalanx::job {
namespace {

// The members are what the parts of a document share.
class Resolver {
 public:
  Resolver(Report& report, JobSpec& spec)
      : report_(report), spec_(spec), offsets_(spec.modules.size(), Offset::kNotLookedAt) {}

  void Resolve() {
    for (size_t i = 0; i < spec_.modules.size(); ++i) ResolveOffset(i);
    ResolveLanguage();
    for (size_t i = 0; i < spec_.edges.size(); ++i) {
      ResolveEnd(EdgePath(i) + ".from", &spec_.edges[i].from);
      ResolveEnd(EdgePath(i) + ".to", &spec_.edges[i].to);
    }
  }

 private:
  enum class Offset : uint8_t { kNotLookedAt, kBeingResolved, kKnown, kNone };

  // Index of the module so named; if there is none, `path` is not sound.
  std::optional<int32_t> ModuleNamed(const std::string& path, const std::string& name) {
    std::vector<absl::string_view> names;
    bool all_known = !spec_.modules.empty();
    for (size_t i = 0; i < spec_.modules.size(); ++i) {
      if (spec_.modules[i].name == name) return static_cast<int32_t>(i);
      all_known &= report_.Sound(ModulePath(i) + ".name");
      names.push_back(spec_.modules[i].name);
    }
    if (!all_known) {
      report_.Doubt(path);
    } else if (const auto nearest = NearestName(name, names); nearest.has_value()) {
      report_.Add(path, absl::StrCat("names no module; did you mean ", *nearest, "?"));
    } else {
      report_.Add(path, absl::StrCat("names no module; there are ", absl::StrJoin(names, ", ")));
    }
    return std::nullopt;
  }

  void ResolveEnd(const std::string& path, int32_t* end) {
    const Tree* node = report_.Written(path);
    if (node == nullptr || !report_.Sound(path)) return;
    if (const std::optional<int32_t> module = ModuleNamed(path, node->scalar)) *end = *module;
  }

  void ResolveLanguage() {
    const std::string path = "spec.language";
    const Tree* node = report_.Written(path);
    if (node != nullptr) {
      ResolveEnd(path, &spec_.language);
      return;
    }
    bool all_known = !spec_.modules.empty();
    for (size_t i = 0; i < spec_.modules.size(); ++i) {
      all_known &= report_.Sound(ModulePath(i) + ".name");
      if (spec_.modules[i].name != "language") continue;
      spec_.language = static_cast<int32_t>(i);
      return;
    }
    if (all_known) {
      report_.Add(path,
                  "is required where no module is called 'language': the language module's name");
    } else {
      report_.Doubt(path);
    }
  }

  // Whether modules[index] has an offset, which is set then, following names; reported where it is
  // wrong.
  bool ResolveOffset(size_t index) {
    Offset& mine = offsets_[index];
    if (mine != Offset::kNotLookedAt) return mine == Offset::kKnown;
    mine = Offset::kBeingResolved;
    const std::string path = ModulePath(index) + ".offset";
    const Tree* node = report_.Written(path);
    std::optional<int64_t> offset =
        node == nullptr ? AfterTheOneBefore(index) : Written(path, *node);
    if (offset.has_value() &&
        (*offset < 0 || *offset + spec_.modules[index].parallel.ranks > kRanksMax)) {
      report_.Add(
          node != nullptr ? path : ModulePath(index) + ".parallel.ranks",
          absl::StrCat("ranks [", *offset, ", ", *offset + spec_.modules[index].parallel.ranks,
                       ") must lie within [0, ", kRanksMax, ")"));
      offset.reset();
    }
    spec_.modules[index].offset = static_cast<int32_t>(offset.value_or(kUnplaced));
    mine = offset.has_value() ? Offset::kKnown : Offset::kNone;
    return offset.has_value();
  }

  std::optional<int64_t> AfterTheOneBefore(size_t index) {
    if (index == 0) return 0;
    if (offsets_[index - 1] == Offset::kBeingResolved) {
      report_.Add(ModulePath(index) + ".offset",
                  "module offsets must not refer to each other in a circle: without one, it "
                  "follows the module before it");
      return std::nullopt;
    }
    if (!ResolveOffset(index - 1) || !report_.Sound(ModulePath(index - 1) + ".parallel.ranks")) {
      return std::nullopt;
    }
    const Module& before = spec_.modules[index - 1];
    return int64_t{before.offset} + before.parallel.ranks;
  }

  std::optional<int64_t> Written(const std::string& path, const Tree& node) {
    if (node.kind != Tree::Kind::kScalar) {
      report_.Add(path, "must be an integer or a module's name");
      return std::nullopt;
    }
    const std::optional<int64_t> number = ParseInteger(node.scalar);
    if (!node.quoted && number.has_value()) return number;
    const std::optional<int32_t> target = ModuleNamed(path, node.scalar);
    if (!target.has_value()) return std::nullopt;
    const auto other = static_cast<size_t>(*target);
    if (offsets_[other] == Offset::kBeingResolved) {
      report_.Add(path, "module offsets must not refer to each other in a circle");
      return std::nullopt;
    }
    if (!ResolveOffset(other)) return std::nullopt;
    return spec_.modules[other].offset;
  }

  Report& report_;
  JobSpec& spec_;
  std::vector<Offset> offsets_;
};

// 0 and nothing written: left to us.
void DeriveArchitecture(Architecture& a) {
  if (TraitsOf(a).grouped_queries && a.kv_heads == 0) a.kv_heads = a.heads;
  if (a.head_size == 0 && a.heads > 0) a.head_size = a.hidden_size / a.heads;
}

void DeriveDegrees(Parallel& p) {
  // Each factor is at most 2^20, so three of them stay within 64 bits.
  const int64_t dense = int64_t{p.tp} * p.cp * p.pp, expert = int64_t{p.expt_tp} * p.ep * p.pp;
  p.dp = static_cast<int32_t>(std::max<int64_t>(1, p.ranks / dense));
  p.expt_dp = static_cast<int32_t>(std::max<int64_t>(1, p.ranks / expert));
}

// Where the planner lays out a module it places all of them.
void CheckOpenLayouts(const JobSpec& spec, Report& report) {
  if (!spec.HasOpenLayout()) return;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const std::string offset = ModulePath(i) + ".offset";
    if (report.Written(offset) == nullptr) continue;
    report.Add(offset,
               "may not be written where a module's parallel is auto: the planner places "
               "all modules");
  }
  if (report.Written("spec.resources.devices") == nullptr) {
    report.Add("spec.resources.devices",
               "is required where a module's parallel is auto: on how many devices");
  }
}

}  // namespace

void ResolveReferences(Report& report, JobSpec& spec) {
  const bool gpu = spec.resources.device == DeviceKind::kGpu;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    Module& module = spec.modules[i];
    DeriveArchitecture(module.architecture);
    DeriveDegrees(module.parallel);
    if (module.parallel.automatic) report.Doubt(ModulePath(i) + ".parallel");
    if (report.Written(ModulePath(i) + ".parallel.sequence") == nullptr)
      module.parallel.sequence = gpu && module.parallel.tp > 1;
  }
  CheckOpenLayouts(spec, report);
  Resolver(report, spec).Resolve();
  for (size_t i = 0; i < spec.edges.size() && !spec.modules.empty(); ++i) {
    Edge& edge = spec.edges[i];
    if (!edge.projector.has_value() || edge.projector->hidden_size != 0) continue;
    edge.projector->hidden_size =
        spec.modules[static_cast<size_t>(edge.to)].architecture.hidden_size;
  }
  if (report.Written("spec.resources.devices") == nullptr) {
    spec.resources.devices = std::max(1, spec.World());
  }
  if (report.Written("spec.precision.compute") == nullptr) {
    spec.compute = gpu ? Precision::kBf16 : Precision::kFp32;
  }
  if (spec.checkpoint.has_value() && spec.checkpoint->directory.empty()) {
    spec.checkpoint->directory = "checkpoints";
  }
  if (spec.output.empty()) spec.output = absl::StrCat("runs/", spec.name);
}

}  // namespace phalanx::job

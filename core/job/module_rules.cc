#include <algorithm>
#include <initializer_list>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/references.h"
#include "core/job/rules.h"
#include "core/job/schema.h"

namespace phalanx::job {
namespace {

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether all of `fields`, below `path`, are sound.
bool AllSound(const Report& report, const std::string& path,
              std::initializer_list<absl::string_view> fields) {
  return std::all_of(fields.begin(), fields.end(),
                     [&](absl::string_view field) { return report.Sound(JoinPath(path, field)); });
}

// Far more than any model has, and few enough that bytes of everything made of them can be counted.
constexpr double kParametersMax = 1e14;

void CheckSize(const Architecture& a, const std::string& path, Report& report) {
  if (!AllSound(report, path, {"hidden_size", "layers", "heads", "head_size", "mlp_size"})) return;
  const auto hidden = static_cast<double>(a.hidden_size);
  const double attention =
      4 * hidden * static_cast<double>(a.heads) * static_cast<double>(a.head_size);
  const double mlp = 3 * hidden * static_cast<double>(a.mlp_size);
  if (static_cast<double>(a.layers) * (attention + mlp) <= kParametersMax) return;
  report.Add(path + ".hidden_size",
             "a module may have at most 10^14 parameters; its layers would have more");
}

void CheckShape(const Architecture& a, const std::string& path, Report& report) {
  CheckSize(a, path, report);
  const FamilyTraits& family = TraitsOf(a);
  // Before anything is said of `heads` in other respects.
  const bool grouped = family.grouped_queries && AllSound(report, path, {"heads", "kv_heads"});
  if (AllSound(report, path, {"hidden_size", "heads", "head_size"})) {
    const bool derived = report.Written(path + ".head_size") == nullptr;
    if (derived && a.hidden_size % a.heads != 0) {
      report.Add(path + ".heads", absl::StrCat("must divide hidden_size (", a.hidden_size,
                                               "), or head_size must be written"));
    } else if (a.head_size > kHeadSizeMax) {  // one that is written was checked
      report.Add(path + ".heads", absl::StrCat("heads may have a size of at most ", kHeadSizeMax,
                                               "; this gives ", a.head_size));
    } else if (family.positions == Positions::kRotary && a.head_size % 2 != 0) {
      report.Add(path + (derived ? ".heads" : ".head_size"),
                 absl::StrCat("heads must be of even size, for rotary positions; this gives ",
                              a.head_size));
    }
  }
  if (grouped && a.heads % a.kv_heads != 0) {
    report.Add(path + ".kv_heads", absl::StrCat("must divide heads (", a.heads, ")"));
  }
  if (family.images() && AllSound(report, path, {"image_size", "patch_size"}) &&
      a.image_size % a.patch_size != 0) {
    report.Add(path + ".image_size",
               absl::StrCat("must be a multiple of patch_size (", a.patch_size, ")"));
  }
  if (family.positions == Positions::kSinusoidal && report.Sound(path + ".hidden_size") &&
      a.hidden_size % 2 != 0) {
    report.Add(path + ".hidden_size",
               "must be even: half of it holds the sines of a position, half the cosines");
  }
  if (family.sounds() && report.Sound(path + ".frames") && a.frames % 2 != 0) {
    report.Add(path + ".frames", "must be even: two frames make one row");
  }
}

// The first of `axes` whose product with those before it no longer divides `ranks`; nullopt if the
// whole product does.
struct AxisLength {
  const char* name;
  int64_t length;
};
std::optional<AxisLength> FirstThatDoesNotDivide(int64_t ranks,
                                                 std::initializer_list<AxisLength> axes) {
  int64_t product = 1;
  for (const AxisLength& axis : axes) {
    product *= axis.length;  // at most 2^20 before it and 2^20 itself
    if (product < 1 || product > ranks || ranks % product != 0) return axis;
  }
  return std::nullopt;
}

void CheckMesh(const Parallel& p, const std::string& path, Report& report) {
  if (AllSound(report, path, {"ranks", "tp", "cp", "pp"})) {
    if (const std::optional<AxisLength> axis =
            FirstThatDoesNotDivide(p.ranks, {{"tp", p.tp}, {"cp", p.cp}, {"pp", p.pp}})) {
      report.Add(JoinPath(path, axis->name),
                 absl::StrCat("tp*cp*pp must divide ranks (", p.ranks, ")"));
    }
  }
  if (AllSound(report, path, {"ranks", "expt_tp", "ep", "pp"}) && (p.expt_tp > 1 || p.ep > 1)) {
    if (const std::optional<AxisLength> axis =
            FirstThatDoesNotDivide(p.ranks, {{"pp", p.pp}, {"expt_tp", p.expt_tp}, {"ep", p.ep}})) {
      report.Add(JoinPath(path, axis->name),
                 absl::StrCat("expt_tp*ep*pp must divide ranks (", p.ranks, ")"));
    }
  }
}

// Tensor ranks beyond the number of units would hold nothing.
void CheckWidth(const Module& module, const std::string& path, Report& report) {
  const Architecture& a = module.architecture;
  const std::string tp = path + ".parallel.tp", shape = path + ".architecture";
  if (!TraitsOf(a).known() || !report.Sound(tp)) return;
  const int64_t width = module.parallel.tp;
  if (report.Sound(shape + ".heads") && width > a.heads) {
    report.Add(tp, absl::StrCat("may not exceed the query heads (", a.heads, ")"));
  } else if (AllSound(report, shape, {"mlp_size", "block"}) &&
             width > CeilDivide(a.mlp_size, a.block)) {
    report.Add(tp,
               absl::StrCat("may not exceed the blocks of the MLP (mlp_size ", a.mlp_size,
                            " in blocks of ", a.block, ": ", CeilDivide(a.mlp_size, a.block), ")"));
  } else if (TraitsOf(a).vocabulary() && AllSound(report, shape, {"vocabulary", "block"}) &&
             width > CeilDivide(a.vocabulary, a.block)) {
    report.Add(tp, absl::StrCat("may not exceed the blocks of the vocabulary (", a.vocabulary,
                                " rows in blocks of ", a.block, ": ",
                                CeilDivide(a.vocabulary, a.block), ")"));
  }
}

void CheckStages(const Module& module, const std::string& path, Report& report) {
  const Parallel& p = module.parallel;
  const std::string parallel = path + ".parallel";
  const int32_t layers = module.architecture.layers;
  const bool known = layers > 0 && report.Sound(path + ".architecture.layers");
  if (!AllSound(report, parallel, {"pp", "layers"})) return;
  if (p.layers.empty()) {
    const Tree* written = report.Find(parallel + ".layers");
    if (written != nullptr && written->kind == Tree::Kind::kSequence) {
      report.Add(parallel + ".layers",
                 absl::StrCat("must have an entry for each of pp (", p.pp, ") stages"));
    } else if (known && p.pp > layers) {
      report.Add(parallel + ".pp",
                 absl::StrCat("every stage needs a layer, and there are ", layers));
    }
    return;
  }
  if (p.layers.size() != static_cast<size_t>(p.pp)) {
    report.Add(parallel + ".layers",
               absl::StrCat("must have an entry for each of pp (", p.pp, ") stages"));
    return;
  }
  const int64_t sum = std::accumulate(p.layers.begin(), p.layers.end(), int64_t{0});
  if (known && sum != layers) {
    report.Add(parallel + ".layers",
               absl::StrCat("must add up to the module's layers (", layers, "), not to ", sum));
  }
}

void CheckNamesDiffer(const JobSpec& spec, Report& report) {
  std::map<std::string, size_t> first;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const std::string path = ModulePath(i) + ".name";
    if (!report.Sound(path)) continue;
    const auto [where, inserted] = first.emplace(spec.modules[i].name, i);
    if (!inserted) {
      report.Add(path, absl::StrCat("must be unique; ", ModulePath(where->second), " has it too"));
    }
  }
}

// The families that can be a language module, for messages.
std::string LanguageFamilies() {
  std::vector<absl::string_view> names;
  for (const FamilyTraits& family : kFamilies) {
    if (family.vocabulary()) names.push_back(family.name);
  }
  return absl::StrJoin(names, " or ");
}

// Exactly one language module: the one that spec.language names has a vocabulary, and no other has.
void CheckLanguage(const JobSpec& spec, Report& report) {
  if (!report.Sound("spec.language") || spec.modules.empty()) return;
  const size_t language = static_cast<size_t>(spec.language);
  const auto family = [&](size_t i) { return TraitsOf(spec.modules[i].architecture); };
  const auto path = [](size_t i) { return ModulePath(i) + ".architecture.family"; };
  if (family(language).known() && !family(language).vocabulary() && report.Sound(path(language))) {
    report.Add(path(language),
               absl::StrCat("the language module must be of family ", LanguageFamilies()));
  }
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (i == language || !family(i).vocabulary() || !report.Sound(path(i))) continue;
    report.Add(path(i), absl::StrCat("exactly one module may be a language module, and '",
                                     spec.modules[language].name, "' is it"));
  }
}

}  // namespace

std::string ModulePath(size_t index) { return absl::StrCat("spec.modules[", index, "]"); }
std::string EdgePath(size_t index) { return absl::StrCat("spec.edges[", index, "]"); }

void CheckModule(const Module& module, size_t index, Report& report) {
  const std::string path = ModulePath(index);
  if (report.Sound(path + ".architecture.family") && TraitsOf(module.architecture).known()) {
    CheckShape(module.architecture, path + ".architecture", report);
  }
  CheckMesh(module.parallel, path + ".parallel", report);
  CheckWidth(module, path, report);
  CheckStages(module, path, report);
}

void CheckSpans(const JobSpec& spec, Report& report) {
  const auto sound = [&](size_t i) {
    return report.Sound(ModulePath(i) + ".parallel.ranks") &&
           report.Sound(ModulePath(i) + ".offset") && spec.modules[i].offset != kUnplaced;
  };
  const auto span = [&](size_t i) {
    const Module& module = spec.modules[i];
    return absl::StrCat("[", module.offset, ", ", module.offset + module.parallel.ranks, ")");
  };
  const std::string devices = "spec.resources.devices";
  const bool bounded = report.Sound(devices) && report.Written(devices) != nullptr;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (!sound(i)) continue;
    const Module& module = spec.modules[i];
    const int64_t end = int64_t{module.offset} + module.parallel.ranks;
    const bool written = report.Written(ModulePath(i) + ".offset") != nullptr;
    const std::string blamed = ModulePath(i) + (written ? ".offset" : ".parallel.ranks");
    if (bounded && end > spec.resources.devices && written) {
      report.Add(blamed, absl::StrCat("ranks ", span(i), " end beyond resources.devices (",
                                      spec.resources.devices, ")"));
    } else if (bounded && end > spec.resources.devices && report.Sound(devices)) {
      report.Add(devices, absl::StrCat("must cover what the modules span (", spec.World(), ")"));
    }
    for (size_t j = 0; j < i; ++j) {
      const Module& other = spec.modules[j];
      const int64_t other_end = int64_t{other.offset} + other.parallel.ranks;
      if (!sound(j) || module.offset >= other_end || other.offset >= end) continue;
      if (module.offset == other.offset && end == other_end) continue;
      report.Add(blamed, absl::StrCat("ranks ", span(i), " overlap ", span(j), " of module '",
                                      other.name, "'; spans must be equal or disjoint"));
      break;
    }
  }
}

void CheckModules(const JobSpec& spec, Report& report) {
  CheckNamesDiffer(spec, report);
  CheckLanguage(spec, report);
}

}  // namespace phalanx::job

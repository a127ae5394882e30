#include "core/job/module_reader.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/rules.h"
#include "core/job/scalar.h"
#include "core/job/schema.h"

namespace phalanx::job {
namespace {

constexpr size_t kModulesMax = 64;
constexpr size_t kEdgesMax = 256;
constexpr size_t kNameMax = 63;

bool IsModuleName(absl::string_view name) {
  const auto legal = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= kNameMax &&
         absl::ascii_isalpha(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(), legal);
}

// The members are what the parts of `modules` and `edges` share.
class ModuleReader {
 public:
  ModuleReader(Report& report, Purpose purpose, JobSpec& spec)
      : report_(report), purpose_(purpose), spec_(spec) {}

  void ReadModules(const Record& spec);
  void ReadLanguage(const Record& spec);
  void ReadEdges(const Record& spec);

 private:
  void ReadModule(size_t index);
  void ReadArchitecture(const std::string& path, Architecture* architecture);
  void ReadParallel(const std::string& path, Parallel* parallel);
  bool ResolveOffset(size_t index, std::vector<int>* state);
  void ReadEdge(size_t index);
  // Index of the module so named; reports at `path` if there is none.
  std::optional<int32_t> ModuleNamed(const std::string& path, const std::string& name);

  Record At(const std::string& path, absl::string_view schema) {
    return Record(report_, path, schema, purpose_);
  }

  Report& report_;
  const Purpose purpose_;
  JobSpec& spec_;
};

void ModuleReader::ReadArchitecture(const std::string& path, Architecture* a) {
  // The family decides which fields there are; so it is read alone first.
  const Tree* family = report_.Find(path + ".family");
  std::optional<Family> known;
  if (family == nullptr || family->kind == Tree::Kind::kNull) {
    if (purpose_ == Purpose::kPlan) known = kNoFamily;
  } else {
    for (size_t i = 0; i < FamilyNames().size(); ++i) {
      if (FamilyNames()[i] == family->scalar) known = static_cast<Family>(i + 1);
    }
  }
  const Record record(report_, path, "spec.modules.architecture", purpose_, known);
  record.GetEnum("family", &a->family, 1);
  record.Get("hidden_size", &a->hidden_size);
  record.Get("layers", &a->layers);
  record.Get("heads", &a->heads);
  a->kv_heads = TraitsOf(*a).grouped_queries ? a->heads : 0;
  record.Get("kv_heads", &a->kv_heads);
  a->head_size = a->heads > 0 ? a->hidden_size / a->heads : 0;
  record.Get("head_size", &a->head_size);
  record.Get("mlp_size", &a->mlp_size);
  record.Get("block", &a->block);
  record.Get("vocabulary", &a->vocabulary);
  record.Get("context", &a->context);
  record.Get("tied_head", &a->tied_head);
  record.Get("rope_theta", &a->rope_theta);
  record.Get("norm_epsilon", &a->norm_epsilon);
  record.Get("image_size", &a->image_size);
  record.Get("patch_size", &a->patch_size);
  record.Get("mel_bins", &a->mel_bins);
  record.Get("frames", &a->frames);
}

void ModuleReader::ReadParallel(const std::string& path, Parallel* p) {
  const Record record = At(path, "spec.modules.parallel");
  record.Get("ranks", &p->ranks);
  record.Get("tp", &p->tp);
  record.Get("cp", &p->cp);
  record.Get("pp", &p->pp);
  record.Get("ep", &p->ep);
  record.Get("expt_tp", &p->expt_tp);
  record.Get("layers", &p->layers);
  if (const std::optional<std::vector<size_t>> order = record.GetChoices("order")) {
    if (order->size() != p->order.size()) {
      report_.Add(path + ".order", "must name each of tp, cp, dp, pp once");
    } else {
      for (size_t i = 0; i < order->size(); ++i) {
        p->order[i] = static_cast<MeshAxis>((*order)[i]);
      }
    }
  }
  // Each factor is at most 2^20, so three of them stay within 64 bits.
  const int64_t dense = int64_t{p->tp} * p->cp * p->pp;
  const int64_t expert = int64_t{p->expt_tp} * p->ep * p->pp;
  p->dp = static_cast<int32_t>(std::max<int64_t>(1, p->ranks / dense));
  p->expt_dp = static_cast<int32_t>(std::max<int64_t>(1, p->ranks / expert));
}

void ModuleReader::ReadModule(size_t index) {
  const std::string path = ModulePath(index);
  const Record record = At(path, "spec.modules");
  Module& module = spec_.modules[index];
  record.Get("name", &module.name);
  if (record.Has("name") && report_.Sound(path + ".name") && !IsModuleName(module.name)) {
    report_.Add(path + ".name",
                "must be letters, digits, '-' and '_', at most 63, starting with a letter");
  }
  if (record.Has("architecture")) ReadArchitecture(path + ".architecture", &module.architecture);
  ReadParallel(path + ".parallel", &module.parallel);
  record.Get("frozen", &module.frozen);
  record.GetEnum("recompute", &module.recompute);
  record.Get("weights", &module.weights);
  record.Get("loss_weight", &module.loss_weight);
  if (record.Has("loss_weight") && !TraitsOf(module.architecture).predicts() &&
      report_.Sound(path + ".architecture.family")) {
    report_.Add(path + ".loss_weight", "only a regressor has it");
  }
}

// Sets modules[index].offset, following names; false if it has none (reported where it is wrong).
// state: 0 not looked at, 1 being resolved, 2 known, 3 has none.
bool ModuleReader::ResolveOffset(size_t index, std::vector<int>* state) {
  int& mine = (*state)[index];
  if (mine != 0) return mine == 2;
  mine = 1;
  const std::string path = ModulePath(index) + ".offset";
  const Tree* node = report_.Find(path);
  const bool written = node != nullptr && node->kind != Tree::Kind::kNull;
  int64_t offset = 0;
  bool known = true;
  if (!written) {
    if (index > 0 && (*state)[index - 1] == 1) {
      report_.Add(
          path,
          "module offsets must not refer to each other in a circle: without one, it follows "
          "the module before it");
      known = false;
    } else if (index > 0) {
      const bool before = ResolveOffset(index - 1, state);
      known = before && report_.Sound(ModulePath(index - 1) + ".parallel.ranks");
      const Module& previous = spec_.modules[index - 1];
      offset = int64_t{previous.offset} + previous.parallel.ranks;
    }
  } else if (node->kind == Tree::Kind::kScalar && !node->quoted && ParseInteger(node->scalar)) {
    offset = *ParseInteger(node->scalar);
  } else if (node->kind == Tree::Kind::kScalar) {
    const std::optional<int32_t> target = ModuleNamed(path, node->scalar);
    if (target.has_value() && (*state)[static_cast<size_t>(*target)] == 1) {
      report_.Add(path, "module offsets must not refer to each other in a circle");
      known = false;
    } else {
      known = target.has_value() && ResolveOffset(static_cast<size_t>(*target), state);
      if (known) offset = spec_.modules[static_cast<size_t>(*target)].offset;
    }
  } else {
    report_.Add(path, "must be an integer or a module's name");
    known = false;
  }
  constexpr int64_t kRanksMax = 1 << 20;
  if (known && (offset < 0 || offset + spec_.modules[index].parallel.ranks > kRanksMax)) {
    report_.Add(written ? path : ModulePath(index) + ".parallel.ranks",
                absl::StrCat("ranks must lie within [0, ", kRanksMax, ")"));
    known = false;
  }
  spec_.modules[index].offset = known ? static_cast<int32_t>(offset) : kUnplaced;
  (*state)[index] = known ? 2 : 3;
  return known;
}

void ModuleReader::ReadModules(const Record& spec) {
  const size_t count = spec.Count("modules");
  if (count == 0 && spec.Has("modules") && report_.Sound("spec.modules")) {
    report_.Add("spec.modules", "may not be empty");
  }
  if (count > kModulesMax) {
    report_.Add("spec.modules", absl::StrCat("may have at most ", kModulesMax, " entries"));
    return;
  }
  spec_.modules.resize(count);
  for (size_t i = 0; i < count; ++i) ReadModule(i);
  std::vector<int> state(count, 0);
  for (size_t i = 0; i < count; ++i) ResolveOffset(i, &state);
  for (size_t i = 0; i < count; ++i) CheckModule(spec_.modules[i], i, report_);
}

std::optional<int32_t> ModuleReader::ModuleNamed(const std::string& path, const std::string& name) {
  std::vector<absl::string_view> names;
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    if (spec_.modules[i].name == name) return static_cast<int32_t>(i);
    names.push_back(spec_.modules[i].name);
  }
  std::string rule = absl::StrCat("names no module; there are ", absl::StrJoin(names, ", "));
  if (const auto nearest = NearestName(name, names); nearest.has_value() && !nearest->empty()) {
    rule = absl::StrCat("names no module; did you mean ", *nearest, "?");
  }
  report_.Add(path, std::move(rule));
  return std::nullopt;
}

void ModuleReader::ReadLanguage(const Record& spec) {
  std::string name = "language";
  spec.Get("language", &name);
  if (!report_.Sound("spec.language") || spec_.modules.empty()) return;
  if (spec.Has("language")) {
    if (const auto index = ModuleNamed("spec.language", name)) spec_.language = *index;
    return;
  }
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    if (spec_.modules[i].name == name) {
      spec_.language = static_cast<int32_t>(i);
      return;
    }
  }
  report_.Add("spec.language",
              "is required where no module is called 'language': the language module's name");
}

void ModuleReader::ReadEdge(size_t index) {
  const std::string path = EdgePath(index);
  const Record record = At(path, "spec.edges");
  Edge& edge = spec_.edges[index];
  for (const bool source : {true, false}) {
    const char* field = source ? "from" : "to";
    std::string name;
    record.Get(field, &name);
    if (!record.Has(field) || !report_.Sound(JoinPath(path, field))) continue;
    if (const auto module = ModuleNamed(JoinPath(path, field), name)) {
      (source ? edge.from : edge.to) = *module;
    }
  }
  if (!record.Has("projector")) return;
  const Record projector = At(path + ".projector", "spec.edges.projector");
  edge.projector.emplace();
  if (report_.Sound(path + ".to") && !spec_.modules.empty()) {
    const Module& target = spec_.modules[static_cast<size_t>(edge.to)];
    edge.projector->hidden_size = target.architecture.hidden_size;
  }
  projector.GetChoice("type");
  projector.Get("hidden_size", &edge.projector->hidden_size);
  projector.Get("frozen", &edge.projector->frozen);
}

void ModuleReader::ReadEdges(const Record& spec) {
  const size_t count = spec.Count("edges");
  if (count > kEdgesMax) {
    report_.Add("spec.edges", absl::StrCat("may have at most ", kEdgesMax, " entries"));
    return;
  }
  spec_.edges.resize(count);
  for (size_t i = 0; i < count; ++i) ReadEdge(i);
}

}  // namespace

void ReadModuleGraph(const Record& record, Purpose purpose, Report& report, JobSpec& spec) {
  ModuleReader reader(report, purpose, spec);
  reader.ReadModules(record);
  reader.ReadLanguage(record);
  reader.ReadEdges(record);
}

}  // namespace phalanx::job

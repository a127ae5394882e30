// The model of a job, and whether a checkpoint is of the same.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/checkpoint/manifest.h"
#include "core/job/fields.h"

namespace phalanx::checkpoint {
namespace {

using job::Tree;
using Architecture = std::vector<std::pair<std::string, std::string>>;

// Of an architecture, what no logical tensor depends on and a job may so change: how tensors are
// cut into units, and how long sequences may be.
constexpr std::array<absl::string_view, 2> kFree = {"block", "context"};

const Tree* Find(const Tree* mapping, absl::string_view name) {
  if (mapping == nullptr) return nullptr;
  for (const Tree::Entry& entry : mapping->entries) {
    if (entry.key == name) return &entry.value;
  }
  return nullptr;
}

std::string ValueOf(const Architecture& architecture, absl::string_view field) {
  for (const auto& [name, value] : architecture) {
    if (name == field) return value;
  }
  return "none";
}

// Fields of both, those of `a` first.
std::vector<std::string> FieldsOf(const Architecture& a, const Architecture& b) {
  std::vector<std::string> names;
  for (const Architecture* one : {&a, &b}) {
    for (const auto& [name, value] : *one) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

absl::string_view TrainsWord(bool trains) { return trains ? "trains" : "is frozen"; }

// Collects what is not the same.
class Comparison {
 public:
  Comparison(const std::string& name, std::vector<Violation>* found) : name_(name), found_(found) {}

  void Say(std::string rule) {
    found_->push_back({"spec.checkpoint.resume_from", name_, std::move(rule)});
  }
  // `what`, `field`: "module language has vocabulary"
  void Expect(absl::string_view what, absl::string_view field, absl::string_view there,
              absl::string_view here) {
    if (there != here)
      Say(absl::StrCat(what, " has ", field, " ", there, ", the job's has ", here));
  }
  void ExpectTrains(absl::string_view what, bool there, bool here) {
    if (there == here) return;
    Say(absl::StrCat(what, " ", TrainsWord(there), " there and ", TrainsWord(here), " in the job"));
  }

  void Modules(const std::vector<Model::Module>& there, const std::vector<Model::Module>& here) {
    for (const Model::Module& module : here) {
      const std::string what = absl::StrCat("module ", module.name);
      const auto same = std::find_if(there.begin(), there.end(),
                                     [&](const auto& one) { return one.name == module.name; });
      if (same == there.end()) {
        Say(absl::StrCat("has no ", what));
        continue;
      }
      for (const std::string& field : FieldsOf(same->architecture, module.architecture)) {
        if (std::find(kFree.begin(), kFree.end(), field) != kFree.end()) continue;
        Expect(what, field, ValueOf(same->architecture, field),
               ValueOf(module.architecture, field));
      }
      ExpectTrains(what, same->trains, module.trains);
    }
    for (const Model::Module& module : there) {
      if (std::none_of(here.begin(), here.end(),
                       [&](const auto& one) { return one.name == module.name; })) {
        Say(absl::StrCat("has a module ", module.name, ", the job has none"));
      }
    }
  }

  void Projectors(const std::vector<Model::Projector>& there,
                  const std::vector<Model::Projector>& here) {
    const auto find = [](const auto& list, const Model::Projector& wanted) {
      return std::find_if(list.begin(), list.end(), [&](const Model::Projector& one) {
        return one.from == wanted.from && one.to == wanted.to;
      });
    };
    const auto name = [](const Model::Projector& one) {
      return absl::StrCat("the projector from ", one.from, " to ", one.to);
    };
    for (const Model::Projector& projector : here) {
      const auto same = find(there, projector);
      if (same == there.end()) {
        Say(absl::StrCat("has not ", name(projector)));
        continue;
      }
      Expect(name(projector), "hidden_size", absl::StrCat(same->hidden_size),
             absl::StrCat(projector.hidden_size));
      ExpectTrains(name(projector), same->trains, projector.trains);
    }
    for (const Model::Projector& projector : there) {
      if (find(here, projector) == here.end()) {
        Say(absl::StrCat("has ", name(projector), ", the job has not"));
      }
    }
  }

 private:
  const std::string& name_;
  std::vector<Violation>* const found_;
};

}  // namespace

Model ModelOf(const job::JobSpec& spec) {
  Model model{.compute = spec.compute};
  const Tree document = job::WriteWithoutData(spec);
  const Tree* const modules = Find(Find(&document, "spec"), "modules");
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    Model::Module module{.name = spec.modules[i].name, .trains = !spec.modules[i].frozen};
    if (const Tree* const architecture = Find(&modules->items[i], "architecture")) {
      for (const auto& [field, value] : architecture->entries) {
        module.architecture.emplace_back(field, value.scalar);
      }
    }
    model.modules.push_back(std::move(module));
  }
  const auto name_of = [&](int32_t module) {
    return spec.modules[static_cast<size_t>(module)].name;
  };
  for (const job::Edge& edge : spec.edges) {
    if (!edge.projector.has_value()) continue;
    model.projectors.push_back({.from = name_of(edge.from),
                                .to = name_of(edge.to),
                                .hidden_size = edge.projector->hidden_size,
                                .trains = !edge.projector->frozen});
  }
  return model;
}

DType DTypeOf(Kind kind, job::Precision compute) {
  if (compute == job::Precision::kFp64) return DType::kF64;
  return kind == Kind::kWeight && compute == job::Precision::kBf16 ? DType::kBf16 : DType::kF32;
}

std::vector<Violation> Incompatible(const job::JobSpec& spec, const std::string& name,
                                    const Manifest& manifest) {
  std::vector<Violation> found;
  Comparison comparison(name, &found);
  const Model here = ModelOf(spec);
  comparison.Expect("the checkpoint", "precision.compute", NameOf(manifest.model.compute),
                    NameOf(here.compute));
  comparison.Modules(manifest.model.modules, here.modules);
  comparison.Projectors(manifest.model.projectors, here.projectors);
  if (manifest.step > spec.steps) {
    comparison.Say(
        absl::StrCat("is of step ", manifest.step, ", and the job ends at step ", spec.steps));
  }
  return found;
}

}  // namespace phalanx::checkpoint

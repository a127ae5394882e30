#include "core/job/not_yet.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/job/module_reader.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

struct SpecRefusal {
  const char* field;  // below "spec."
  bool (*asked)(const JobSpec&);
  const char* what;  // "this release does not WHAT yet"
};
struct ModuleRefusal {
  const char* field;  // below "spec.modules[i]."
  bool (*asked)(const JobSpec&, const Module&);
  const char* what;
};

bool SharesRanks(const JobSpec& spec, const Module& module) {
  for (const Module& other : spec.modules) {
    if (&other == &module) return false;  // the later one of a pair is the one to name
    if (other.offset == module.offset && other.parallel.ranks == module.parallel.ranks) {
      return true;
    }
  }
  return false;
}

// Ranks below the module that no module uses.
bool LeavesGap(const JobSpec& spec, const Module& module) {
  if (module.offset == 0) return false;
  for (const Module& other : spec.modules) {
    if (other.offset < module.offset && other.offset + other.parallel.ranks >= module.offset) {
      return false;
    }
  }
  return true;
}

constexpr SpecRefusal kSpecRefusals[] = {
    {"priority", [](const JobSpec& s) { return s.priority != 0; }, "order its queue by priority"},
    {"preemptible", [](const JobSpec& s) { return s.preemptible; }, "preempt jobs"},
    {"schedule.name",
     [](const JobSpec& s) {
       return s.schedule.name != ScheduleName::kAuto && s.schedule.name != ScheduleName::k1F1B;
     },
     "train with this schedule"},
    {"schedule.chunks", [](const JobSpec& s) { return s.schedule.chunks > 1; },
     "train with several chunks a rank"},
    {"schedule.encoder_chunks", [](const JobSpec& s) { return s.schedule.encoder_chunks > 1; },
     "cut encoder passes into chunks"},
    {"resources.spares", [](const JobSpec& s) { return s.resources.spares > 0; },
     "keep spare devices"},
};

constexpr ModuleRefusal kModuleRefusals[] = {
    {"architecture.family",
     [](const JobSpec&, const Module& m) { return m.architecture.family == Family::kWhisper; },
     "train audio encoders"},
    {"architecture.family",
     [](const JobSpec&, const Module& m) { return m.architecture.family == Family::kRegressor; },
     "train regressors"},
    {"parallel.cp", [](const JobSpec&, const Module& m) { return m.parallel.cp > 1; },
     "train with context parallelism"},
    {"parallel.ep", [](const JobSpec&, const Module& m) { return m.parallel.ep > 1; },
     "train with expert parallelism"},
    {"parallel.expt_tp", [](const JobSpec&, const Module& m) { return m.parallel.expt_tp > 1; },
     "train with tensor-parallel experts"},
    {"offset", SharesRanks, "train modules that share ranks"},
    {"offset", LeavesGap, "train with ranks that no module uses"},
    {"frozen", [](const JobSpec&, const Module& m) { return m.frozen; }, "train frozen modules"},
    {"recompute", [](const JobSpec&, const Module& m) { return m.recompute != Recompute::kNone; },
     "recompute activations"},
    {"weights", [](const JobSpec&, const Module& m) { return m.weights.has_value(); },
     "load weights"},
};

constexpr const char* kWarned[] = {"spec.time_limit", "spec.checkpoint", "spec.recovery",
                                   "spec.trace"};

std::string Sentence(const char* what) {
  return absl::StrCat("this release does not ", what, " yet");
}

}  // namespace

void RefuseNotYet(const JobSpec& spec, Report& report) {
  for (const SpecRefusal& refusal : kSpecRefusals) {
    const std::string path = absl::StrCat("spec.", refusal.field);
    if (report.Sound(path) && refusal.asked(spec)) report.Add(path, Sentence(refusal.what));
  }
  bool placed = true;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    placed &= report.Sound(ModulePath(i) + ".parallel.ranks") &&
              report.Sound(ModulePath(i) + ".offset") && spec.modules[i].offset != kUnplaced;
  }
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    for (const ModuleRefusal& refusal : kModuleRefusals) {
      const std::string path = JoinPath(ModulePath(i), refusal.field);
      // Where modules lie is known only when all of them do.
      if (absl::string_view(refusal.field) == "offset" && !placed) continue;
      if (report.Sound(path) && refusal.asked(spec, spec.modules[i])) {
        report.Add(path, Sentence(refusal.what));
      }
    }
  }
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const std::string path = EdgePath(i) + ".projector.frozen";
    if (report.Sound(path) && spec.edges[i].projector && spec.edges[i].projector->frozen) {
      report.Add(path, Sentence("train frozen projectors"));
    }
  }
}

std::vector<std::string> WarnNotYet(const JobSpec& spec, const Report& report) {
  std::vector<std::string> warnings;
  for (const char* path : kWarned) {
    const Tree* node = report.Find(path);
    if (node == nullptr || node->kind == Tree::Kind::kNull) continue;
    if (absl::string_view(path) == "spec.trace" && !spec.trace) continue;
    warnings.push_back(absl::StrCat(path, ": not in force yet"));
  }
  return warnings;
}

}  // namespace phalanx::job

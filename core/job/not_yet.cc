#include "core/job/not_yet.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/job/references.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

struct ModuleRefusal {
  const char* field;  // below "spec.modules[i]."
  bool (*asked)(const Module&);
  const char* what;  // "this release does not WHAT yet"
};

constexpr ModuleRefusal kModuleRefusals[] = {
    {"parallel.cp", [](const Module& m) { return m.parallel.cp > 1; },
     "train with context parallelism"},
    {"parallel.ep", [](const Module& m) { return m.parallel.ep > 1; },
     "train with expert parallelism"},
    {"parallel.expt_tp", [](const Module& m) { return m.parallel.expt_tp > 1; },
     "train with tensor-parallel experts"},
    {"weights", [](const Module& m) { return m.weights.has_value(); }, "load weights"},
};

std::string Sentence(const char* what) {
  return absl::StrCat("this release does not ", what, " yet");
}

}  // namespace

void RefuseNotYet(const JobSpec& spec, Report& report) {
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    for (const ModuleRefusal& refusal : kModuleRefusals) {
      const std::string path = JoinPath(ModulePath(i), refusal.field);
      if (report.Sound(path) && refusal.asked(spec.modules[i])) {
        report.Add(path, Sentence(refusal.what));
      }
    }
  }
}

std::vector<std::string> WarningsOf(const JobSpec& spec, const Report& report) {
  constexpr const char* kLadder = "spec.recovery.ladder";
  if (report.Written(kLadder) == nullptr) return {};
  const std::vector<Rung>& ladder = spec.recovery.ladder;
  if (ladder.empty()) {
    return {absl::StrCat(
        kLadder, ": the job tolerates no loss: it ends with the first device that it loses")};
  }
  return {};
}

}  // namespace phalanx::job

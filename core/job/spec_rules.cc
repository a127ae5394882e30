#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/devices.h"
#include "core/job/graph.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

// Items of an encoder become rows of a decoder's sequence, of which the last one predicts nothing;
// told once for all encoders that read the same items.
void CheckFit(const JobSpec& spec, size_t index, Report& report) {
  const Edge& edge = spec.edges[index];
  const size_t to = static_cast<size_t>(edge.to);
  const std::string context = ModulePath(to) + ".architecture.context";
  const auto modality = [&spec](int32_t module) {
    return TraitsOf(spec.modules[static_cast<size_t>(module)].architecture).modality;
  };
  const int64_t rows = spec.PositionsOfItem(edge.from);
  if (rows == 0 || !report.Sound(EdgePath(index)) || !report.Sound(context) ||
      !TraitsOf(spec.modules[to].architecture).decoder() ||
      rows < spec.modules[to].architecture.context) {
    return;
  }
  for (size_t i = 0; i < index; ++i) {
    const Edge& other = spec.edges[i];
    if (report.Sound(EdgePath(i)) && other.to == edge.to &&
        modality(other.from) == modality(edge.from)) {
      return;
    }
  }
  std::vector<std::string> readers;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (modality(static_cast<int32_t>(i)) != modality(edge.from)) continue;
    if (!report.Sound(ModulePath(i) + ".architecture")) return;
    readers.push_back(absl::StrCat("'", spec.modules[i].name, "'"));
  }
  report.Add(context, absl::StrCat("must exceed the ", rows, " rows of one item of ",
                                   absl::StrJoin(readers, " and ")));
}

// Whether what feeds what is known: an edge whose ends are not understood may be the one that
// feeds a module.
bool GraphKnown(const JobSpec& spec, const Report& report) {
  if (spec.edges.empty() && !report.Sound("spec.edges")) return false;
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    if (!report.Sound(EdgePath(i) + ".from") || !report.Sound(EdgePath(i) + ".to")) return false;
  }
  return report.Sound("spec.language");
}

void CheckSinks(const JobSpec& spec, Report& report) {
  if (!GraphKnown(spec, report)) return;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const bool feeds = std::any_of(spec.edges.begin(), spec.edges.end(), [i](const Edge& edge) {
      return static_cast<size_t>(edge.from) == i;
    });
    if (feeds || !TraitsOf(spec.modules[i].architecture).encoder() ||
        static_cast<size_t>(spec.language) == i || !report.Sound(ModulePath(i) + ".name") ||
        !report.Sound(ModulePath(i) + ".architecture.family")) {
      continue;
    }
    report.Add(ModulePath(i) + ".name", "feeds no module and has no loss: add an edge from it");
  }
}

// Regressors predict rows of the language module's sequence; those that feed no other module are
// all held to the same KEY.target.npy.
void CheckRegressors(const JobSpec& spec, Report& report) {
  if (!GraphKnown(spec, report)) return;
  const std::set<int32_t> behind = ReachedFrom(spec, spec.language);
  const Module* first = nullptr;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const Module& module = spec.modules[i];
    const auto index = static_cast<int32_t>(i);
    if (!TraitsOf(module.architecture).predicts() || index == spec.language ||
        !report.Sound(ModulePath(i) + ".architecture.family")) {
      continue;
    }
    bool fed = false, feeds = false;
    for (const Edge& edge : spec.edges) {
      fed |= edge.to == index;
      feeds |= edge.from == index;
    }
    if (behind.count(index) == 0 && report.Sound(ModulePath(i) + ".name")) {
      report.Add(ModulePath(i) + ".name",
                 absl::StrCat("a regressor needs the sequence of the language module: ",
                              fed ? "what feeds it does not get that" : "no edge leads to it"));
    }
    const Module& language = spec.modules[static_cast<size_t>(spec.language)];
    const std::string context = ModulePath(i) + ".architecture.context";
    if (report.Sound(context) && behind.count(index) > 0 &&
        report.Sound(ModulePath(static_cast<size_t>(spec.language)) + ".architecture.context") &&
        module.architecture.context < language.architecture.context) {
      report.Add(context,
                 absl::StrCat("must be at least that of '", language.name, "' (",
                              language.architecture.context, "), whose whole sequence it gets"));
    }
    const std::string hidden = ModulePath(i) + ".architecture.hidden_size";
    if (feeds || !report.Sound(hidden)) continue;
    if (first == nullptr) {
      first = &module;
    } else if (module.architecture.hidden_size != first->architecture.hidden_size) {
      report.Add(hidden, absl::StrCat("must be that of '", first->name, "' (",
                                      first->architecture.hidden_size,
                                      "): both predict the rows of KEY.target.npy"));
    }
  }
}

// A plan would do with less, to no end.
void CheckInterleaved(const JobSpec& spec, Report& report) {
  if (!report.Sound("spec.schedule") || spec.schedule.name != ScheduleName::kInterleaved) return;
  if (spec.schedule.chunks < 2) {
    report.Add("spec.schedule.chunks", "interleaved needs at least 2 chunks a rank");
  }
  const auto language = static_cast<size_t>(spec.language);
  const std::string stages = ModulePath(language) + ".parallel.pp";
  if (report.Sound("spec.language") && report.Sound(stages) &&
      spec.modules[language].parallel.pp < 2) {
    report.Add(stages, "interleaved needs at least 2 stages");
  }
}

void CheckTrains(const JobSpec& spec, Report& report) {
  if (spec.edges.empty() && !report.Sound("spec.edges")) return;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (!spec.modules[i].frozen || !report.Sound(ModulePath(i) + ".frozen")) return;
  }
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const std::optional<Projector>& projector = spec.edges[i].projector;
    if (!report.Sound(EdgePath(i) + ".projector")) return;
    if (projector.has_value() && !projector->frozen) return;
  }
  report.Add("spec.modules", "nothing trains: every module and every projector is frozen");
}

// Whether any weights of a module train, its projectors' included.
bool Trains(const JobSpec& spec, int32_t module) {
  return !spec.modules[static_cast<size_t>(module)].frozen ||
         std::any_of(spec.edges.begin(), spec.edges.end(), [module](const Edge& edge) {
           return edge.from == module && edge.projector.has_value() && !edge.projector->frozen;
         });
}

// Homes of one piece of state are in different replicas, or at one and in its node's host memory.
void CheckHomes(const JobSpec& spec, Report& report) {
  const std::string path = "spec.recovery";
  if (!report.Sound(path + ".state_home") || !report.Sound(path + ".state_copies")) return;
  const Module* fewest = nullptr;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const Module& module = spec.modules[i];
    if (!report.Sound(ModulePath(i) + ".parallel")) return;
    if (!Trains(spec, static_cast<int32_t>(i))) continue;
    if (fewest == nullptr || module.parallel.dp < fewest->parallel.dp) fewest = &module;
  }
  if (fewest == nullptr) return;
  const Recovery& recovery = spec.recovery;
  const int32_t replicas = fewest->parallel.dp * fewest->parallel.cp;
  if (recovery.state_home == StateHome::kMirror && replicas == 1) {
    return report.Add(path + ".state_home",
                      absl::StrCat("mirror needs a second replica of '", fewest->name,
                                   "', which has one: host keeps a copy in its node's memory"));
  }
  const bool host = recovery.state_home == StateHome::kHost || replicas == 1;
  const int32_t most = host ? 2 : replicas;
  if (recovery.state_copies <= most) return;
  report.Add(
      path + ".state_copies",
      host ? absl::StrCat("may not exceed 2: state of '", fewest->name,
                          "' is at one replica and in its node's host memory")
           : absl::StrCat("may not exceed the replicas of '", fewest->name, "' (", replicas, ")"));
}

// What the rung needs and the job has not; empty: it may come to be taken.
std::string Lacking(const JobSpec& spec, Rung rung) {
  const auto none_has = [&spec](int32_t Parallel::*degree) {
    return std::all_of(spec.modules.begin(), spec.modules.end(),
                       [degree](const Module& module) { return module.parallel.*degree == 1; });
  };
  switch (rung) {
    case Rung::kSpare:
      return DevicesOf(spec) == spec.World() ? "spare needs resources.spares" : "";
    case Rung::kShrink:
      return none_has(&Parallel::tp) ? "shrink needs a module with tp above 1" : "";
    case Rung::kDropReplica:
      return none_has(&Parallel::dp) ? "drop-replica needs a module with dp above 1" : "";
    case Rung::kRestart:
      return spec.checkpoint.has_value() || !none_has(&Parallel::ranks)
                 ? ""
                 : "restart needs a checkpoint section, or a module on several ranks";
    case Rung::kWait:
      break;
  }
  return "";
}

void CheckLadder(const JobSpec& spec, Report& report) {
  const std::string path = "spec.recovery.ladder";
  if (report.Written(path) == nullptr || !report.Sound(path) || !report.Sound("spec.resources"))
    return;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (!report.Sound(ModulePath(i) + ".parallel")) return;
  }
  std::vector<std::string> lacking;
  for (const Rung rung : spec.recovery.ladder) {
    lacking.push_back(Lacking(spec, rung));
    if (lacking.back().empty()) return;
  }
  if (lacking.empty()) return;
  report.Add(path,
             absl::StrCat("none of its rungs can ever be taken: ", absl::StrJoin(lacking, ", "),
                          "; [] is for a job that ends with its first loss"));
}

// Products in FP8 take matrices whose sides 16 divides, whichever part of them a rank has: whole
// heads, whole blocks.
void CheckLinear(const JobSpec& spec, Report& report) {
  constexpr int64_t kMultiple = 16;
  const std::string linear = "spec.precision.linear";
  if (!report.Sound(linear) || spec.linear != LinearFormat::kFp8) return;
  if (report.Sound("spec.precision.compute") && report.Sound("spec.resources.device") &&
      spec.resources.device == DeviceKind::kGpu && spec.compute != Precision::kBf16) {
    report.Add(linear, "fp8 needs precision.compute: bf16 on gpu");
  }
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const Architecture& a = spec.modules[i].architecture;
    if (!TraitsOf(a).decoder()) continue;
    const std::string path = ModulePath(i) + ".architecture";
    for (const auto& [name, size] : {std::pair{".hidden_size", a.hidden_size},
                                     {".head_size", a.head_size},
                                     {".block", a.block}}) {
      if (!report.Sound(path + name) || size % kMultiple == 0) continue;
      report.Add(path + name, absl::StrCat("must be a multiple of ", kMultiple,
                                           " with precision.linear: fp8; it is ", size));
    }
  }
}

}  // namespace

void CheckGraph(const JobSpec& spec, Report& report) {
  for (size_t i = 0; i < spec.edges.size(); ++i) CheckFit(spec, i, report);
  CheckSinks(spec, report);
  CheckRegressors(spec, report);
}

void CheckRun(const JobSpec& spec, Report& report) {
  const Optimizer& optimizer = spec.optimizer;
  const std::string path = "spec.optimizer";
  if (report.Sound(path + ".learning_rate") && report.Sound(path + ".minimum_learning_rate") &&
      optimizer.minimum_learning_rate > optimizer.learning_rate) {
    report.Add(path + ".minimum_learning_rate", "may not exceed learning_rate");
  }
  if (report.Sound(path + ".warmup_steps") && report.Sound("spec.steps") &&
      optimizer.warmup_steps > spec.steps) {
    report.Add(path + ".warmup_steps", absl::StrCat("may not exceed steps (", spec.steps, ")"));
  }
  if (report.Sound("spec.precision") && report.Sound("spec.resources.device") &&
      spec.compute == Precision::kFp64 && spec.resources.device == DeviceKind::kGpu) {
    report.Add("spec.precision.compute", "fp64 needs resources.device: cpu");
  }
  if (spec.modules.empty()) return;
  CheckModules(spec, report);
  CheckLinear(spec, report);
  CheckGraph(spec, report);
  CheckInterleaved(spec, report);
  CheckTrains(spec, report);
  CheckHomes(spec, report);
  CheckLadder(spec, report);
}

}  // namespace phalanx::job

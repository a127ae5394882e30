#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

// Whether both modules of an edge are there and known by family.
bool EndsKnown(const JobSpec& spec, size_t index, const Report& report) {
  const std::string path = EdgePath(index);
  if (!report.Sound(path + ".from") || !report.Sound(path + ".to")) return false;
  const Edge& edge = spec.edges[index];
  for (const int32_t end : {edge.from, edge.to}) {
    if (!TraitsOf(spec.modules[static_cast<size_t>(end)].architecture).known() ||
        !report.Sound(ModulePath(static_cast<size_t>(end)) + ".architecture.family")) {
      return false;
    }
  }
  return true;
}

void CheckEnds(const JobSpec& spec, size_t index, Report& report) {
  const std::string path = EdgePath(index);
  const Edge& edge = spec.edges[index];
  if (edge.from == edge.to) {
    report.Add(path + ".to", "a module cannot feed itself");
    return;
  }
  for (size_t i = 0; i < index; ++i) {
    if (spec.edges[i].from == edge.from && spec.edges[i].to == edge.to &&
        report.Sound(EdgePath(i) + ".from") && report.Sound(EdgePath(i) + ".to")) {
      report.Add(path, absl::StrCat("is the same edge as ", EdgePath(i)));
      return;
    }
  }
}

void CheckProjector(const JobSpec& spec, size_t index, Report& report) {
  const std::string path = EdgePath(index) + ".projector";
  const Edge& edge = spec.edges[index];
  const size_t from = static_cast<size_t>(edge.from), to = static_cast<size_t>(edge.to);
  const Architecture& source = spec.modules[from].architecture;
  const Architecture& target = spec.modules[to].architecture;
  const std::string width = ModulePath(from) + ".parallel.tp";
  if (!report.Sound(path) || !report.Sound(ModulePath(from) + ".architecture.hidden_size") ||
      !report.Sound(ModulePath(to) + ".architecture.hidden_size")) {
    return;
  }
  if (!edge.projector.has_value()) {
    if (source.hidden_size != target.hidden_size) {
      report.Add(path, absl::StrCat("is required where hidden sizes differ: ", source.hidden_size,
                                    " of '", spec.modules[from].name, "', ", target.hidden_size,
                                    " of '", spec.modules[to].name, "'"));
    }
    return;
  }
  const int64_t blocks = (edge.projector->hidden_size + source.block - 1) / source.block;
  if (report.Sound(ModulePath(from) + ".architecture.block") && report.Sound(width) &&
      spec.modules[from].parallel.tp > blocks) {
    report.Add(width, absl::StrCat("may not exceed the blocks of the projector of ",
                                   EdgePath(index), " (hidden_size ", edge.projector->hidden_size,
                                   " in blocks of ", source.block, ": ", blocks, ")"));
  }
}

void CheckFit(const JobSpec& spec, size_t index, Report& report) {
  const Edge& edge = spec.edges[index];
  const size_t from = static_cast<size_t>(edge.from), to = static_cast<size_t>(edge.to);
  const Architecture& source = spec.modules[from].architecture;
  const Architecture& target = spec.modules[to].architecture;
  if (!TraitsOf(target).decoder()) {
    report.Add(EdgePath(index) + ".to", "must be a decoder: encoders read items, not rows");
    return;
  }
  const std::string context = ModulePath(to) + ".architecture.context";
  const int64_t rows = RowsOfItem(source);
  if (rows > 0 && report.Sound(ModulePath(from) + ".architecture") && report.Sound(context) &&
      rows >= target.context) {
    report.Add(context, absl::StrCat("must exceed the ", rows, " rows of one item of '",
                                     spec.modules[from].name, "'"));
  }
}

// Modules that a cycle runs through, or behind one, in spec order.
std::vector<size_t> InCycles(const JobSpec& spec, const Report& report) {
  std::vector<int> waiting(spec.modules.size(), 0);
  std::set<std::pair<int32_t, int32_t>> edges;
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const Edge& edge = spec.edges[i];
    if (report.Sound(EdgePath(i) + ".from") && report.Sound(EdgePath(i) + ".to")) {
      edges.emplace(edge.from, edge.to);
    }
  }
  for (const auto& [from, to] : edges) ++waiting[static_cast<size_t>(to)];
  std::vector<size_t> ready;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] == 0) ready.push_back(i);
  }
  for (size_t done = 0; done < ready.size(); ++done) {
    for (const auto& [from, to] : edges) {
      if (static_cast<size_t>(from) == ready[done] && --waiting[static_cast<size_t>(to)] == 0) {
        ready.push_back(static_cast<size_t>(to));
      }
    }
  }
  std::vector<size_t> left;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] > 0) left.push_back(i);
  }
  return left;
}

// Whether what feeds what is known: an edge whose ends are not understood may be the one that
// feeds a module.
bool GraphKnown(const JobSpec& spec, const Report& report) {
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

void CheckTrains(const JobSpec& spec, Report& report) {
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (!spec.modules[i].frozen || !report.Sound(ModulePath(i) + ".frozen")) return;
  }
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const std::optional<Projector>& projector = spec.edges[i].projector;
    if (!report.Sound(EdgePath(i) + ".projector")) return;
    if (projector.has_value() && !projector->frozen) return;
  }
  if (!spec.modules.empty()) {
    report.Add("spec.modules", "nothing trains: every module and every projector is frozen");
  }
}

}  // namespace

std::set<int32_t> ReachedFrom(const JobSpec& spec, int32_t from) {
  std::set<int32_t> reached;
  std::vector<int32_t> next = {from};
  while (!next.empty()) {
    const int32_t module = next.back();
    next.pop_back();
    for (const Edge& edge : spec.edges) {
      if (edge.from == module && reached.insert(edge.to).second) next.push_back(edge.to);
    }
  }
  return reached;
}

void CheckGraph(const JobSpec& spec, Report& report) {
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const std::string path = EdgePath(i);
    if (!report.Sound(path + ".from") || !report.Sound(path + ".to")) continue;
    CheckEnds(spec, i, report);
    if (report.Sound(path) && EndsKnown(spec, i, report)) {
      CheckProjector(spec, i, report);
      CheckFit(spec, i, report);
    }
  }
  const std::vector<size_t> cycle = InCycles(spec, report);
  if (!cycle.empty()) {
    std::vector<std::string> names;
    for (size_t i : cycle) names.push_back(spec.modules[i].name);
    report.Add("spec.edges", absl::StrCat("must have no cycle; one runs through or before ",
                                          absl::StrJoin(names, ", ")));
  }
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
  CheckTrains(spec, report);
}

}  // namespace phalanx::job

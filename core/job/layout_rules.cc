// What a plan rests on; what single modules and schedules add is beside.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/fields.h"
#include "core/job/graph.h"
#include "core/job/job_reader.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

// Whether an end of an edge is known by family.
bool EndKnown(const JobSpec& spec, int32_t module, const Report& report) {
  const auto index = static_cast<size_t>(module);
  return TraitsOf(spec.modules[index].architecture).known() &&
         report.Sound(ModulePath(index) + ".architecture.family");
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
  if (EndKnown(spec, edge.to, report) &&
      !TraitsOf(spec.modules[static_cast<size_t>(edge.to)].architecture).decoder()) {
    report.Add(path + ".to", "must be a decoder: encoders read items, not rows");
  }
}

void CheckProjector(const JobSpec& spec, size_t index, Report& report) {
  const std::string path = EdgePath(index) + ".projector";
  const Edge& edge = spec.edges[index];
  if (!EndKnown(spec, edge.from, report) || !EndKnown(spec, edge.to, report)) return;
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

// Looks at edges whose ends are known.
void CheckCycles(const JobSpec& spec, Report& report) {
  std::vector<Edge> edges;
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    if (report.Sound(EdgePath(i) + ".from") && report.Sound(EdgePath(i) + ".to")) {
      edges.push_back(spec.edges[i]);
    }
  }
  const std::vector<int32_t> order = DataFlowOrder(spec.modules.size(), edges);
  std::vector<std::string> names;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (std::find(order.begin(), order.end(), static_cast<int32_t>(i)) == order.end()) {
      names.push_back(spec.modules[i].name);
    }
  }
  if (names.empty()) return;
  report.Add("spec.edges", absl::StrCat("must have no cycle; one runs through or before ",
                                        absl::StrJoin(names, ", ")));
}

void CheckEdges(const JobSpec& spec, Report& report) {
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const std::string path = EdgePath(i);
    if (!report.Sound(path + ".from") || !report.Sound(path + ".to")) continue;
    CheckEnds(spec, i, report);
    if (report.Sound(path)) CheckProjector(spec, i, report);
  }
  CheckCycles(spec, report);
}

}  // namespace

void CheckLayout(const JobSpec& spec, Report& report) {
  if (spec.modules.empty()) return;
  for (size_t i = 0; i < spec.modules.size(); ++i) CheckModule(spec.modules[i], i, report);
  CheckSpans(spec, report);
  CheckEdges(spec, report);
  CheckSchedule(spec, report);
}

bool KeepsLayoutRules(const JobSpec& spec) {
  const Tree document;
  Report report(document);
  CheckLayout(spec, report);
  return report.empty();
}

std::vector<Violation> CheckLayout(const JobSpec& spec) {
  const Tree document = WriteWithoutData(spec);
  Report report(document);
  JobSpec read;
  ReadFields(Purpose::kPlan, report, read);
  if (!spec.modules.empty() &&
      (spec.language < 0 || static_cast<size_t>(spec.language) >= spec.modules.size())) {
    report.Add("spec.language", "must be one of the modules");
  }
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (spec.modules[i].parallel.automatic)
      report.Add(ModulePath(i) + ".parallel", "is left to the planner, which has not chosen yet");
  }
  CheckLayout(spec, report);
  return report.Sorted();
}

}  // namespace phalanx::job

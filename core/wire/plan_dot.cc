#include "core/wire/plan_dot.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/wire/plan_text.h"

namespace phalanx::wire {
namespace {

using plan::ModulePlan;
using plan::Plan;

// Names and labels are quoted; nothing in them needs an escape (core/job: names are plain).
std::string Quote(const std::string& text) { return absl::StrCat("\"", text, "\""); }

// cp and the expert axes are told where they are in use.
std::string Layout(const job::Parallel& parallel, const ModulePlan& layout) {
  std::string text = absl::StrCat("tp", WidthsText(layout), " pp", layout.pp(), " dp",
                                  layout.replicas.present_replicas());
  if (parallel.cp > 1) absl::StrAppend(&text, " cp", parallel.cp);
  if (parallel.ep > 1) absl::StrAppend(&text, " ep", parallel.ep);
  if (parallel.expt_tp > 1) absl::StrAppend(&text, " expt_tp", parallel.expt_tp);
  return text;
}

std::string Node(const Plan& plan, const ModulePlan& layout) {
  const job::Module& module = plan.module_spec(layout.index);
  std::vector<std::string> lines = {module.name};
  const job::FamilyTraits& family = job::TraitsOf(module.architecture);
  if (family.known()) lines.push_back(std::string(family.name));
  lines.push_back(Layout(module.parallel, layout));
  lines.push_back(absl::StrCat(layout.grid.size() == 1 ? "rank " : "ranks ",
                               RunText(layout.grid.offset(), layout.grid.size())));
  if (module.architecture.layers > 0) lines.push_back("layers " + LayerCounts(layout));
  if (module.frozen) lines.push_back("frozen");
  return absl::StrCat(Quote(module.name), " [label=", Quote(absl::StrJoin(lines, "\\n")),
                      module.frozen ? ", style=\"rounded,dashed\"" : "", "];\n");
}

std::string Arrow(const Plan& plan, const plan::Link& link) {
  const job::Edge& edge = plan.spec.edges[static_cast<size_t>(link.edge)];
  std::string label = LanesText(plan, link);
  if (edge.projector.has_value()) {
    absl::StrAppend(&label, "\\nmlp ", edge.projector->hidden_size,
                    edge.projector->frozen ? " frozen" : "");
  }
  return absl::StrCat("  ", Quote(plan.module_spec(link.from.module).name), " -> ",
                      Quote(plan.module_spec(link.to.module).name), " [label=", Quote(label),
                      "];\n");
}

}  // namespace

std::string PlanDot(const Plan& plan) {
  std::string text = absl::StrCat(
      "digraph ", Quote(plan.spec.name),
      " {\n  rankdir=LR;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n"
      "  edge [fontname=\"sans-serif\"];\n");
  std::map<std::pair<int32_t, int32_t>, std::vector<const ModulePlan*>> spans;
  for (const ModulePlan& layout : plan.modules) {
    spans[{layout.grid.offset(), layout.grid.size()}].push_back(&layout);
  }
  int cluster = 0;
  for (const auto& [span, modules] : spans) {
    if (modules.size() == 1) {
      absl::StrAppend(&text, "  ", Node(plan, *modules.front()));
      continue;
    }
    absl::StrAppend(&text, "  subgraph cluster_", cluster++, " {\n    label=\"colocated\";\n");
    for (const ModulePlan* layout : modules) absl::StrAppend(&text, "    ", Node(plan, *layout));
    absl::StrAppend(&text, "  }\n");
  }
  for (const plan::Link& link : plan.links) {
    if (link.edge >= 0) absl::StrAppend(&text, Arrow(plan, link));
  }
  return absl::StrCat(text, "}\n");
}

}  // namespace phalanx::wire

#include "core/wire/search_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/rough_time.h"
#include "core/base/status.h"
#include "core/job/json.h"
#include "core/job/schema.h"
#include "core/plan/memory_fit.h"
#include "core/wire/job_yaml.h"
#include "core/wire/plan_text.h"

namespace phalanx::wire {
namespace {

using job::ListTree;
using job::MappingTree;
using job::NumberTree;
using job::TextTree;
using job::Tree;
using schedule::Proposal;

std::string RecomputeName(job::Recompute recompute) {
  return std::string(job::RecomputeNames()[static_cast<size_t>(recompute)]);
}

// "language tp2 dp2 pp4, recompute full"; degrees of 1 are left out.
std::string ModuleText(const job::Module& module) {
  std::string text = module.name;
  const std::pair<const char*, int32_t> degrees[] = {{"tp", module.parallel.tp},
                                                     {"cp", module.parallel.cp},
                                                     {"pp", module.parallel.pp},
                                                     {"dp", module.parallel.dp}};
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) absl::StrAppend(&text, " ", name, degree);
  }
  if (module.recompute != job::Recompute::kNone)
    absl::StrAppend(&text, " (recompute ", RecomputeName(module.recompute), ")");
  return text;
}

Tree ModuleTree(const job::Module& module) {
  return MappingTree({{"name", TextTree(module.name)},
                      {"offset", NumberTree(int64_t{module.offset})},
                      {"ranks", NumberTree(int64_t{module.parallel.ranks})},
                      {"tp", NumberTree(int64_t{module.parallel.tp})},
                      {"pp", NumberTree(int64_t{module.parallel.pp})},
                      {"dp", NumberTree(int64_t{module.parallel.dp})},
                      {"recompute", TextTree(RecomputeName(module.recompute))}});
}

const char* SurvivedName(schedule::Survived survives) {
  switch (survives) {
    case schedule::Survived::kNone:
      return "none";
    case schedule::Survived::kSome:
      return "some";
    case schedule::Survived::kAny:
      break;
  }
  return "any";
}

Tree ProposalTree(const Proposal& proposal) {
  std::vector<Tree> modules;
  for (const job::Module& module : proposal.spec.modules) modules.push_back(ModuleTree(module));
  const job::Schedule& schedule = proposal.spec.schedule;
  const schedule::StepParts& parts = proposal.parts;
  return MappingTree(
      {{"step", NumberTree(proposal.step)},
       {"memory", NumberTree(proposal.memory)},
       {"bubble", NumberTree(proposal.bubble)},
       {"survives", TextTree(SurvivedName(proposal.survives))},
       {"clock_mhz", proposal.clock_mhz > 0 ? NumberTree(proposal.clock_mhz) : Tree()},
       {"micro", NumberTree(proposal.spec.batch.micro)},
       {"schedule",
        MappingTree({{"name", TextTree(NameOf(schedule.name))},
                     {"chunks", NumberTree(int64_t{schedule.chunks})},
                     {"encoder_chunks", NumberTree(int64_t{schedule.encoder_chunks})}})},
       {"modules", ListTree(std::move(modules))},
       {"parts", MappingTree({{"compute", NumberTree(parts.compute)},
                              {"recompute", NumberTree(parts.recompute)},
                              {"tensor", NumberTree(parts.tensor)},
                              {"waiting", NumberTree(parts.waiting)},
                              {"update", NumberTree(parts.update)}})},
       {"slower", proposal.slower.empty() ? Tree() : TextTree(proposal.slower)}});
}

// The entry of that name, made where there is none.
Tree& At(Tree& mapping, absl::string_view name) {
  mapping.kind = Tree::Kind::kMapping;
  for (auto& [key, value] : mapping.entries) {
    if (key == name) return value;
  }
  mapping.entries.push_back({std::string(name), Tree()});
  return mapping.entries.back().value;
}

bool Has(const Tree& mapping, absl::string_view name) {
  return std::any_of(mapping.entries.begin(), mapping.entries.end(),
                     [name](const auto& entry) { return entry.key == name; });
}

Tree Number(int64_t value) { return NumberTree(value); }
Tree Word(const std::string& value) { return job::ScalarTree(value, false); }

Tree ParallelTree(const job::Parallel& parallel) {
  Tree tree = MappingTree({{"ranks", Number(parallel.ranks)}});
  if (parallel.tp > 1) tree.entries.push_back({"tp", Number(parallel.tp)});
  if (parallel.pp > 1) tree.entries.push_back({"pp", Number(parallel.pp)});
  return tree;
}

Tree ScheduleTree(const job::Schedule& schedule) {
  Tree tree = MappingTree({{"name", Word(NameOf(schedule.name))}});
  if (schedule.chunks > 1) tree.entries.push_back({"chunks", Number(schedule.chunks)});
  if (schedule.encoder_chunks > 1)
    tree.entries.push_back({"encoder_chunks", Number(schedule.encoder_chunks)});
  return tree;
}

// Lines of at most so many columns, broken behind commas and bars, each indented by four.
constexpr size_t kLineColumns = 79;
std::string Lines(absl::string_view text) {
  constexpr absl::string_view kIndent = "    ";
  std::string lines(kIndent);
  size_t column = kIndent.size();
  while (!text.empty()) {
    const size_t comma = text.find(", "), bar = text.find(" | ");
    const size_t end = std::min(
        {comma == text.npos ? comma : comma + 2, bar == text.npos ? bar : bar + 3, text.size()});
    const absl::string_view piece = absl::StripTrailingAsciiWhitespace(text.substr(0, end));
    if (column + piece.size() > kLineColumns && column > kIndent.size()) {
      absl::StripTrailingAsciiWhitespace(&lines);
      absl::StrAppend(&lines, "\n", kIndent, "  ");
      column = kIndent.size() + 2;
    }
    absl::StrAppend(&lines, text.substr(0, end));
    column += end;
    text.remove_prefix(end);
  }
  return lines + "\n";
}

}  // namespace

std::string LayoutText(const job::JobSpec& spec) {
  std::vector<std::string> spans;
  std::vector<bool> told(spec.modules.size(), false);
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (told[i]) continue;
    std::vector<std::string> modules;
    for (size_t j = i; j < spec.modules.size(); ++j) {
      if (spec.modules[j].offset != spec.modules[i].offset) continue;
      modules.push_back(ModuleText(spec.modules[j]));
      told[j] = true;
    }
    spans.push_back(absl::StrCat(absl::StrJoin(modules, ", "), " on ",
                                 RunText(spec.modules[i].offset, spec.modules[i].parallel.ranks)));
  }
  return absl::StrJoin(spans, " | ");
}

std::string SearchTable(const schedule::SearchResult& result,
                        const schedule::SearchOptions& options) {
  std::string text = absl::StrCat(
      options.devices, options.devices == 1 ? " device" : " devices", " of kind ",
      options.profile.name,
      options.device_memory > 0 ? ", " + plan::FormatBytes(options.device_memory) + " each" : "",
      "; ", options.items, options.items == 1 ? " item" : " items", " a sample; ", result.layouts,
      result.layouts == 1 ? " layout, " : " layouts, ", result.simulated,
      result.simulated == 1 ? " setting simulated\n" : " settings simulated\n");
  if (!options.profile.network.has_value() && options.devices > options.node_devices) {
    absl::StrAppend(&text, "links between nodes count as those within one: the profile has none\n");
  }
  if (options.device_memory == 0) {
    absl::StrAppend(&text, "without --device-memory no layout is too large for the devices\n");
  }
  absl::StrAppend(&text, absl::StrFormat("\n%2s  %10s  %7s  %10s  %8s  %5s  %s\n", "#", "STEP",
                                         "BUBBLE", "MEMORY", "SURVIVES", "MICRO", "SCHEDULE"));
  size_t place = 0;
  for (const Proposal& proposal : result.best) {
    absl::StrAppend(
        &text, absl::StrFormat("%2d  %10s  %5.1f %%  %10s  %8s  %5d  %s\n", ++place,
                               MillisecondsText(proposal.step), proposal.bubble * 100,
                               plan::FormatBytes(proposal.memory), SurvivedName(proposal.survives),
                               proposal.spec.batch.micro, ScheduleText(proposal.spec.schedule)));
    absl::StrAppend(&text, Lines(LayoutText(proposal.spec)));
    if (!proposal.slower.empty()) {
      const bool is_slower = proposal.step > result.best[place - 2].step;
      absl::StrAppend(&text, Lines(absl::StrCat(is_slower ? "slower than " : "behind ", place - 1,
                                                ": ", proposal.slower)));
    }
  }
  return text;
}

std::string SearchJson(const schedule::SearchResult& result,
                       const schedule::SearchOptions& options) {
  std::vector<Tree> best;
  for (const Proposal& proposal : result.best) best.push_back(ProposalTree(proposal));
  return job::EmitJson(MappingTree(
      {{"apiVersion", TextTree("phalanx/v1")},
       {"kind", TextTree("PlanSearch")},
       {"devices", NumberTree(int64_t{options.devices})},
       {"node_devices", NumberTree(int64_t{options.node_devices})},
       {"device_kind", TextTree(options.profile.name)},
       {"device_memory", options.device_memory > 0 ? NumberTree(options.device_memory) : Tree()},
       {"items", NumberTree(int64_t{options.items})},
       {"layouts", NumberTree(result.layouts)},
       {"too_large", NumberTree(result.too_large)},
       {"simulated", NumberTree(result.simulated)},
       {"best", ListTree(std::move(best))}}));
}

absl::StatusOr<std::string> WithLayoutOf(absl::string_view text, const job::JobSpec& chosen,
                                         const std::vector<bool>& open) {
  ASSIGN_OR_RETURN(Tree document, ParseYaml(text));
  Tree& spec = At(document, "spec");
  Tree& modules = At(spec, "modules");
  if (modules.kind != Tree::Kind::kSequence || modules.items.size() != chosen.modules.size())
    return absl::InvalidArgumentError("the document has other modules than its job");
  for (size_t i = 0; i < chosen.modules.size(); ++i) {
    const job::Module& module = chosen.modules[i];
    Tree& written = modules.items[i];
    if (open.empty() || open[i]) At(written, "parallel") = ParallelTree(module.parallel);
    At(written, "offset") = Number(module.offset);
    At(written, "recompute") = Word(RecomputeName(module.recompute));
  }
  Tree& batch = At(spec, "batch");
  At(batch, "micro") = Number(chosen.batch.micro);
  if (chosen.batch.labelled_share != job::Batch().labelled_share && !Has(batch, "labelled_share"))
    At(batch, "labelled_share") = NumberTree(chosen.batch.labelled_share);
  At(spec, "schedule") = ScheduleTree(chosen.schedule);
  At(At(spec, "resources"), "devices") = Number(chosen.resources.devices);
  return EmitYaml(document);
}

}  // namespace phalanx::wire

#include "core/wire/plan_table.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/rough_time.h"
#include "core/job/schema.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/memory_fit.h"
#include "core/plan/samples.h"
#include "core/plan/units.h"

namespace phalanx::wire {
namespace {

using plan::ModulePlan;
using plan::Place;
using plan::Plan;

constexpr int32_t kRanksShown = 64;
constexpr size_t kLostShown = 16;
constexpr size_t kColumns = 100;
constexpr size_t kNameColumns = 16;  // of names; longer ones are cut

std::string Cut(const std::string& text, size_t columns = kNameColumns) {
  return text.size() <= columns ? text : absl::StrCat(text.substr(0, columns - 2), "..");
}

// Columns as wide as their longest cell, two blanks apart; where a line would be too long, the
// widest columns are cut.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string Print() const {
    const std::vector<size_t> widths = Widths();
    std::string text;
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string cell = Cut(row[i], widths[i]);
        absl::StrAppend(&line, cell, std::string(widths[i] - cell.size() + kGap, ' '));
      }
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(&text, line, "\n");
    }
    return text;
  }

 private:
  static constexpr size_t kGap = 2;

  std::vector<size_t> Widths() const {
    std::vector<size_t> widths(rows_.front().size(), 0);
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    const size_t gaps = kGap * (widths.size() - 1);
    while (std::accumulate(widths.begin(), widths.end(), gaps) > kColumns) {
      --*std::max_element(widths.begin(), widths.end());
    }
    return widths;
  }

  std::vector<std::vector<std::string>> rows_;
};

std::string Run(plan::UnitRange range) { return RunText(range.first, range.count); }

// What sets a module apart: "frozen", "recompute full".
std::string NotesOf(const job::Module& module) {
  std::vector<std::string> notes;
  if (module.frozen) notes.push_back("frozen");
  if (module.recompute != job::Recompute::kNone) {
    notes.push_back(
        absl::StrCat("recompute ", job::RecomputeNames()[static_cast<size_t>(module.recompute)]));
  }
  return absl::StrJoin(notes, ", ");
}

std::string ModulesTable(const Plan& plan) {
  std::vector<std::string> header = {"MODULE", "FAMILY", "RANKS",  "TP",          "CP",
                                     "DP",     "PP",     "LAYERS", "SAMPLES/LANE"};
  const bool noted = std::any_of(plan.spec.modules.begin(), plan.spec.modules.end(),
                                 [](const auto& module) { return !NotesOf(module).empty(); });
  if (noted) header.push_back("NOTES");
  TextTable table(std::move(header));
  for (const ModulePlan& layout : plan.modules) {
    const job::Module& module = plan.module_spec(layout.index);
    const std::vector<int64_t> samples = plan::LaneSamplesOfStep(plan, layout.index);
    int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
    for (int32_t dp = 0; dp < layout.replicas.replicas(); ++dp) {
      if (!layout.replicas.Present(dp)) continue;
      least = std::min(least, samples[static_cast<size_t>(dp)]);
      most = std::max(most, samples[static_cast<size_t>(dp)]);
    }
    std::vector<std::string> row = {
        Cut(module.name),
        FamilyName(module.architecture),
        RunText(layout.grid.offset(), layout.grid.size()),
        WidthsText(layout),
        absl::StrCat(layout.replicas.cp()),
        absl::StrCat(layout.replicas.present_replicas()),
        absl::StrCat(layout.pp()),
        module.architecture.layers > 0 ? LayerCounts(layout) : "-",
        most == least ? absl::StrCat(most) : absl::StrCat(least, " to ", most)};
    if (noted) row.push_back(NotesOf(module));
    table.Add(std::move(row));
  }
  return table.Print();
}

std::string EdgesTable(const Plan& plan) {
  TextTable table({"EDGE", "LANES", "MODULES ARE", "PROJECTOR"});
  for (const plan::Link& link : plan.links) {
    if (link.edge < 0) continue;
    const job::Edge& edge = plan.spec.edges[static_cast<size_t>(link.edge)];
    std::string projector = "-";
    if (edge.projector.has_value()) {
      projector = absl::StrCat("mlp ", edge.projector->hidden_size,
                               edge.projector->frozen ? " (frozen)" : "");
    }
    table.Add({absl::StrCat(Cut(plan.module_spec(link.from.module).name), " -> ",
                            Cut(plan.module_spec(link.to.module).name)),
               LanesText(plan, link), AreColocated(plan, link) ? "colocated" : "apart", projector});
  }
  return table.Print();
}

// Of many parts the first two, and how many follow.
std::string Listed(std::vector<std::string> parts) {
  constexpr size_t kPartsShown = 3;
  if (parts.size() <= kPartsShown) return absl::StrJoin(parts, ",");
  return absl::StrCat(parts[0], ",", parts[1], ",+", parts.size() - 2);
}

std::vector<std::string> PlaceCells(const Plan& plan, const Place& place) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const job::Architecture& architecture = plan.module_spec(place.module).architecture;
  std::vector<std::string> stages, layers;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    const plan::LayerRange& range = layout.layers(place.pp, chunk);
    stages.push_back(absl::StrCat(layout.GraphStage(place.pp, chunk)));
    layers.push_back(RunText(range.first, range.count));
  }
  const plan::TensorUnits units = plan::TensorUnitsOf(architecture, place.width, place.tp);
  const bool ends = HoldsFirst(layout, place.pp) || HoldsLast(layout, place.pp);
  return {Cut(plan.module_spec(place.module).name),
          absl::StrCat(place.tp, "/", place.cp, "/", place.dp, "/", place.pp),
          Listed(stages),
          Listed(layers),
          Run(units.query_heads),
          Run(units.mlp_blocks),
          ends ? Run(units.vocabulary_blocks) : "-"};
}

// `memory` of every rank; empty where it is not known.
std::string RanksTable(const Plan& plan, const std::vector<plan::MemoryEstimate>& memory) {
  TextTable table({"RANK", "DEVICE", "MODULE", "TP/CP/DP/PP", "STAGE", "LAYERS", "HEADS", "MLP",
                   "VOCAB", "MEMORY"});
  for (int32_t rank = 0; rank < std::min(plan.world, kRanksShown); ++rank) {
    const plan::Device device = plan.DeviceOf(Rank{rank});
    std::vector<std::string> head = {absl::StrCat(rank),
                                     absl::StrCat(Cut(device.node), "/", device.index)};
    std::string bytes =
        memory.empty() ? "-" : plan::FormatBytes(memory[static_cast<size_t>(rank)].total());
    const std::vector<Place> places = plan.PlacesOf(Rank{rank});
    if (places.empty()) {
      const bool lost =
          std::binary_search(plan.layout.lost.begin(), plan.layout.lost.end(), Rank{rank});
      head.push_back(lost ? "(lost)" : "(idle)");
      table.Add(std::move(head));
      continue;
    }
    for (const Place& place : places) {
      std::vector<std::string> row = std::move(head);
      for (std::string& cell : PlaceCells(plan, place)) row.push_back(std::move(cell));
      row.push_back(std::move(bytes));
      table.Add(std::move(row));
      head = {"", ""};  // further modules of the same rank
      bytes = "";
    }
  }
  std::string text = table.Print();
  if (plan.world > kRanksShown) {
    absl::StrAppend(&text, "and ", plan.world - kRanksShown, " ranks more: see -o json\n");
  }
  return text;
}

std::string MemoryLine(const std::vector<plan::MemoryEstimate>& memory) {
  const auto largest =
      std::max_element(memory.begin(), memory.end(),
                       [](const auto& a, const auto& b) { return a.total() < b.total(); });
  return absl::StrCat("Memory, at most on rank ", largest - memory.begin(), ": ",
                      plan::FormatBytes(largest->total()), "\n  parameters ",
                      plan::FormatBytes(largest->parameters), ", gradients ",
                      plan::FormatBytes(largest->gradients), ", optimizer ",
                      plan::FormatBytes(largest->optimizer), ", activations ",
                      plan::FormatBytes(largest->activations), "\n");
}

// Of the node whose ranks take most of its memory; empty: none takes any.
std::string HostMemoryLine(const Plan& plan, const std::vector<plan::MemoryEstimate>& memory) {
  const std::vector<plan::HostEstimate> nodes = plan::HostMemoryOf(plan, memory);
  const auto largest =
      std::max_element(nodes.begin(), nodes.end(),
                       [](const auto& a, const auto& b) { return a.total() < b.total(); });
  if (largest == nodes.end() || largest->total() == 0) return "";
  const NodeName& node = plan.layout.nodes[static_cast<size_t>(largest - nodes.begin())].node;
  return absl::StrCat("Host memory, at most on ", Cut(node), ": ",
                      plan::FormatBytes(largest->total()), "\n  second homes ",
                      plan::FormatBytes(largest->copies), ", checkpoints ",
                      plan::FormatBytes(largest->snapshot), "\n");
}

// Tensor ranks of the stages of a replica: "4", "4,3,4".
std::string WidthsOfStages(const plan::ReplicaTable& replicas, int32_t dp) {
  std::vector<int32_t> widths;
  for (int32_t pp = 0; pp < replicas.stages(); ++pp) widths.push_back(replicas.Width(dp, pp));
  if (std::count(widths.begin(), widths.end(), widths.front()) == replicas.stages())
    widths.resize(1);
  return absl::StrJoin(widths, ",");
}

// A row for each replica that is hit, and one for all others.
void AddReplicas(const Plan& plan, const ModulePlan& layout, const std::set<int32_t>& hit,
                 TextTable* table) {
  const std::string& name = plan.module_spec(layout.index).name;
  const std::vector<int64_t> samples = plan::LaneSamplesOfStep(plan, layout.index);
  std::vector<int64_t> others;
  int32_t other = -1;
  for (int32_t dp = 0; dp < layout.replicas.replicas(); ++dp) {
    const int64_t share = samples[static_cast<size_t>(dp)];
    if (!hit.contains(dp)) {
      others.push_back(share);
      other = dp;
    } else if (layout.replicas.Present(dp)) {
      table->Add({absl::StrCat(Cut(name), " ", dp), WidthsOfStages(layout.replicas, dp),
                  absl::StrCat(share)});
    } else {
      table->Add({absl::StrCat(Cut(name), " ", dp), "left out", "-"});
    }
  }
  if (others.empty()) return;
  const auto [least, most] = std::minmax_element(others.begin(), others.end());
  table->Add(
      {absl::StrCat(Cut(name), ", ", others.size(), others.size() == 1 ? " other" : " others"),
       WidthsOfStages(layout.replicas, other),
       *least == *most ? absl::StrCat(*most) : absl::StrCat(*least, " to ", *most)});
}

// "language tp 2 -> 1, pp 2 -> 1 on ranks 1-2".
std::string RestartText(const Plan& plan, const ModulePlan& layout) {
  const job::Parallel& written = plan.module_spec(layout.index).parallel;
  std::vector<std::string> degrees;
  const auto add = [&degrees](const char* name, int32_t from, int32_t to) {
    if (from != to) degrees.push_back(absl::StrCat(name, " ", from, " -> ", to));
  };
  add("tp", written.tp, layout.parallel.tp);
  add("dp", written.dp, layout.parallel.dp);
  add("pp", written.pp, layout.parallel.pp);
  plan::RankList ranks = plan.layout.modules[static_cast<size_t>(layout.index)].lowered->ranks;
  std::sort(ranks.begin(), ranks.end());
  const size_t count = ranks.size();
  if (count > kLostShown) ranks.resize(kLostShown);
  return absl::StrCat(
      Cut(plan.module_spec(layout.index).name), " ", absl::StrJoin(degrees, ", "), " on ",
      count == 1 ? "rank " : "ranks ",
      absl::StrJoin(ranks, ", ",
                    [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value); }),
      count > ranks.size() ? ", ..." : "");
}

// When every share of optimizer state has all its homes.
std::string SafeAgainText(int64_t steps) {
  return steps == 0 ? "before the first step" : absl::StrCat("after at most ", steps, " steps");
}

// What is lost, and what is left of the replicas of each module that lost any of it.
std::string LossTable(const Plan& plan, const std::optional<schedule::Preview::Loss>& loss) {
  const auto number = [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value); };
  std::vector<Rank> shown = plan.layout.lost;
  if (shown.size() > kLostShown) shown.resize(kLostShown);
  std::string text = absl::StrCat("Lost: ", shown.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(shown, ", ", number),
                                  shown < plan.layout.lost ? ", ..." : "", "\n");
  for (const ModulePlan& layout : plan.modules) {
    if (layout.lowered()) absl::StrAppend(&text, "Restart: ", RestartText(plan, layout), "\n");
  }
  TextTable table({"REPLICAS", "WIDTHS", "SAMPLES"});
  bool any = false;
  for (const ModulePlan& layout : plan.modules) {
    std::set<int32_t> hit;
    for (const plan::SlotChange& change :
         plan.layout.modules[static_cast<size_t>(layout.index)].changes)
      hit.insert(change.dp);
    if (hit.empty()) continue;
    AddReplicas(plan, layout, hit, &table);
    any = true;
  }
  if (any) absl::StrAppend(&text, "\n", table.Print());
  if (loss.has_value()) {
    absl::StrAppend(&text,
                    absl::StrFormat("\nStep: %.3f times the healthy one\n", loss->step_ratio),
                    "State to move: ", plan::FormatBytes(loss->moves.bytes), ", at most ",
                    loss->moves.steps_lost, loss->moves.steps_lost == 1 ? " step" : " steps",
                    " lost\n", "Safe again: ", SafeAgainText(loss->moves.safe_again_steps), "\n");
  }
  return text;
}

// Whether nothing that memory depends on was lowered after the schedule was chosen.
bool IsAsWritten(const Plan& plan) {
  if (plan.layout.micro > 0) return false;
  const bool left_open = plan.spec.recovery.state_home == job::StateHome::kAuto;
  return std::none_of(plan.modules.begin(), plan.modules.end(), [&](const ModulePlan& module) {
    const plan::ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module.index)];
    const bool host = layout.state_home == job::StateHome::kHost;
    return layout.recompute.has_value() || (left_open && host && module.replicas.replicas() > 1);
  });
}

// Steps are those of the simulation, as multiples of the chosen one.
std::string CandidatesTable(const Plan& plan) {
  const auto chosen =
      std::find_if(plan.candidates.begin(), plan.candidates.end(),
                   [&](const auto& candidate) { return candidate.schedule == plan.spec.schedule; });
  const bool known = MemoryIsKnown(plan);
  TextTable table(
      {"SCHEDULE TRIED", "STEP", "BUBBLE", IsAsWritten(plan) ? "MEMORY" : "MEMORY AS WRITTEN", ""});
  for (auto candidate = plan.candidates.begin(); candidate != plan.candidates.end(); ++candidate) {
    if (!candidate->left_out.empty()) {
      table.Add({ScheduleText(candidate->schedule), "-", "-", "-",
                 absl::StrCat("left out: ", candidate->left_out)});
      continue;
    }
    table.Add(
        {ScheduleText(candidate->schedule), absl::StrFormat("%.3f", candidate->step / chosen->step),
         absl::StrFormat("%.1f %%", 100 * candidate->bubble),
         known ? plan::FormatBytes(candidate->memory) : "-", candidate == chosen ? "chosen" : ""});
  }
  return table.Print();
}

// Of the rank that takes most, what it takes beside a step, and what of that was not measured.
std::string ProcessMemoryText(const schedule::ProcessMemory& memory) {
  std::string text = absl::StrCat(
      "rank ", memory.rank.value, ": step ", plan::FormatBytes(memory.peak.step.total()),
      ", layouts tried ", plan::FormatBytes(memory.peak.tried_beyond()),
      " more, copies to take over ", plan::FormatBytes(memory.peak.to_take_over));
  if (memory.unestimated > 0)
    absl::StrAppend(&text, ", all else ", plan::FormatBytes(memory.unestimated));
  std::vector<std::string> unknown;
  const auto add = [&](const char* name, std::optional<int64_t> bytes) {
    if (bytes.has_value()) {
      absl::StrAppend(&text, ", ", name, " ", plan::FormatBytes(*bytes));
    } else {
      unknown.push_back(name);
    }
  };
  add("context", memory.context);
  add("communicators", memory.communicators);
  add("standby communicators", memory.standby);
  if (!unknown.empty() && memory.unestimated == 0)
    absl::StrAppend(&text, "; not measured: ", absl::StrJoin(unknown, ", "));
  return text;
}

std::string PredictionLine(const schedule::Prediction& prediction) {
  std::string text = absl::StrFormat("Predicted step: %s on %s, %d %s a sample; %s of memory",
                                     MillisecondsText(prediction.step), prediction.device_kind,
                                     prediction.items, prediction.items == 1 ? "item" : "items",
                                     plan::FormatBytes(prediction.memory.total()));
  if (prediction.clock_mhz > 0)
    absl::StrAppendFormat(&text, "; %.0f MHz kept up", prediction.clock_mhz);
  return absl::StrCat(text, "\n  ", ProcessMemoryText(prediction.memory), "\n");
}

std::string IdleLine(const Plan& plan) {
  const plan::RankList& idle = plan.layout.idle;
  if (idle.empty()) return "";
  std::vector<std::string> names;
  for (size_t i = 0; i < idle.size() && i < 4; ++i) {
    const plan::Device device = plan.DeviceOf(idle[i]);
    names.push_back(absl::StrCat(Cut(device.node), "/", device.index));
  }
  if (idle.size() > names.size()) names.push_back("...");
  return absl::StrCat("Idle devices: ", idle.size(), " (", absl::StrJoin(names, ", "), ")\n");
}

}  // namespace

std::string PlanTable(const Plan& plan, const PlanFigures& figures) {
  const bool known = MemoryIsKnown(plan);
  const std::vector<plan::MemoryEstimate> memory =
      known ? plan::EstimateMemory(plan) : std::vector<plan::MemoryEstimate>();
  std::string text = absl::StrCat(
      "Job ", plan.spec.name, " on ", plan.world, plan.world == 1 ? " rank" : " ranks", ", epoch ",
      plan.epoch().value, ", plan ", plan.digest, "\n\n", ModulesTable(plan));
  if (!plan.spec.edges.empty()) absl::StrAppend(&text, "\n", EdgesTable(plan));
  absl::StrAppend(&text, "\n", RanksTable(plan, memory), "\n");
  if (!plan.layout.lost.empty()) absl::StrAppend(&text, LossTable(plan, figures.loss), "\n");
  absl::StrAppend(&text, IdleLine(plan));
  absl::StrAppend(&text, "Batch: ", plan.spec.batch.global, " samples a step, ", plan.microbatches,
                  plan.microbatches == 1 ? " microbatch" : " microbatches", " of at most ",
                  plan.spec.batch.micro, "\n",
                  absl::StrFormat("Schedule: %s over %d %s, bubble %.1f %% (lower bound %.1f %%)\n",
                                  ScheduleText(plan.spec.schedule), plan.stages,
                                  plan.stages == 1 ? "stage" : "stages", 100 * figures.bubble,
                                  100 * figures.lower_bound));
  if (known) absl::StrAppend(&text, MemoryLine(memory), HostMemoryLine(plan, memory));
  if (figures.prediction.has_value()) absl::StrAppend(&text, PredictionLine(*figures.prediction));
  // Of what is left no others were tried.
  if (!plan.candidates.empty() && plan.layout.lost.empty())
    absl::StrAppend(&text, "\n", CandidatesTable(plan));
  for (const std::string& note : plan.notes) absl::StrAppend(&text, "Note: ", note, "\n");
  return text;
}

}  // namespace phalanx::wire

#include "core/wire/plan_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/job/schema.h"
#include "core/plan/parameters.h"

namespace phalanx::wire {

PlanFigures FiguresOf(const schedule::Preview& preview) {
  return {.bubble = preview.simulation.bubble,
          .lower_bound = preview.simulation.lower_bound,
          .loss = preview.loss,
          .prediction = preview.prediction};
}

std::string RunText(int64_t first, int64_t count) {
  if (count <= 0) return "-";
  return count == 1 ? absl::StrCat(first) : absl::StrCat(first, "-", first + count - 1);
}

std::string FamilyName(const job::Architecture& architecture) {
  const job::FamilyTraits& family = job::TraitsOf(architecture);
  return family.known() ? std::string(family.name) : "-";
}

std::string LayerCounts(const plan::ModulePlan& layout) {
  std::vector<std::string> stages, parts;
  for (int32_t stage = 0; stage < layout.pp(); ++stage) {
    std::vector<std::string> chunks;
    for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      chunks.push_back(absl::StrCat(layout.layers(stage, chunk).count));
    }
    stages.push_back(absl::StrJoin(chunks, "/"));
  }
  for (size_t i = 0; i < stages.size();) {
    size_t end = i;
    while (end < stages.size() && stages[end] == stages[i]) ++end;
    if (end - i > 3) {
      parts.push_back(absl::StrCat(end - i, "x", stages[i]));
    } else {
      parts.insert(parts.end(), end - i, stages[i]);
    }
    i = end;
  }
  if (parts.size() > 6) {
    parts.resize(6);
    parts.push_back("..");
  }
  return absl::StrJoin(parts, "+");
}

std::string NameOf(job::ScheduleName schedule) {
  return std::string(job::ScheduleNames()[static_cast<size_t>(schedule)]);
}

std::string ScheduleText(const job::Schedule& schedule) {
  std::string text = NameOf(schedule.name);
  if (schedule.chunks > 1) absl::StrAppend(&text, ", ", schedule.chunks, " chunks");
  if (schedule.encoder_chunks > 1) {
    absl::StrAppend(&text, ", ", schedule.encoder_chunks, " encoder chunks");
  }
  return text;
}

bool MemoryIsKnown(const plan::Plan& plan) {
  return std::all_of(
      plan.spec.modules.begin(), plan.spec.modules.end(),
      [](const job::Module& module) { return job::TraitsOf(module.architecture).known(); });
}

std::string WidthsText(const plan::ModulePlan& layout) {
  int32_t narrowest = layout.replicas.NarrowestOf(0), widest = layout.replicas.WidestOf(0);
  for (int32_t pp = 1; pp < layout.pp(); ++pp) {
    narrowest = std::min(narrowest, layout.replicas.NarrowestOf(pp));
    widest = std::max(widest, layout.replicas.WidestOf(pp));
  }
  return narrowest == widest ? absl::StrCat(widest) : absl::StrCat(narrowest, " to ", widest);
}

std::string LanesText(const plan::Plan& plan, const plan::Link& link) {
  return absl::StrCat(plan.replicas(link.from.module).present_replicas(), ":",
                      plan.replicas(link.to.module).present_replicas());
}

bool AreColocated(const plan::Plan& plan, const plan::Link& link) {
  return plan.replicas(link.from.module).SharesRanksWith(plan.replicas(link.to.module));
}

bool HoldsFirst(const plan::ModulePlan& layout, int32_t stage) {
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    if (layout.IsFirst(stage, chunk)) return true;
  }
  return false;
}

bool HoldsLast(const plan::ModulePlan& layout, int32_t stage) {
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    if (layout.IsLast(stage, chunk)) return true;
  }
  return false;
}

}  // namespace phalanx::wire

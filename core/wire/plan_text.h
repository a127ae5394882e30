// core/wire/plan_text.h: what JSON, tables and pictures of a plan have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/plan/plan.h"
#include "core/schedule/preview.h"

namespace phalanx::wire {

// What core/schedule found out about the plan; the caller simulates and passes it on.
struct PlanFigures {
  double bubble = 0;  // fractions of devices x step
  double lower_bound = 0;
  std::optional<schedule::Preview::Loss> loss = std::nullopt;
  std::optional<schedule::Prediction> prediction = std::nullopt;
};
PlanFigures FiguresOf(const schedule::Preview& preview);

// "3-7", "3", "-" for none.
std::string RunText(int64_t first, int64_t count);
// Tensor ranks of a stage of a replica, of those that are there: "2", "1 to 2".
std::string WidthsText(const plan::ModulePlan& layout);
// As job files spell it; "-" for none.
std::string FamilyName(const job::Architecture& architecture);
// Layer counts, stage by stage, equal neighbours together, chunks of one stage behind each other:
// "3+3", "8x10+7", "2/2+2/1".
std::string LayerCounts(const plan::ModulePlan& layout);
// "interleaved, 2 chunks", "three_phase, 4 encoder chunks"; chunks are told where there are
// several.
std::string ScheduleText(const job::Schedule& schedule);
// As job files spell it.
std::string NameOf(job::ScheduleName schedule);
// Whether EstimateMemory knows what every module of the plan holds.
bool MemoryIsKnown(const plan::Plan& plan);
// Replicas at both ends of an edge, of those that are there: "3:2".
std::string LanesText(const plan::Plan& plan, const plan::Link& link);
// Whether the modules of an edge share ranks.
bool AreColocated(const plan::Plan& plan, const plan::Link& link);

// Whether ranks at a pipeline coordinate hold the module's first or last part in one of their
// chunks. Under a V-shaped placement the ranks of coordinate 0 hold both.
bool HoldsFirst(const plan::ModulePlan& layout, int32_t stage);
bool HoldsLast(const plan::ModulePlan& layout, int32_t stage);

}  // namespace phalanx::wire

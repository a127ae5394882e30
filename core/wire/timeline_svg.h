// core/wire/timeline_svg.h: the passes of a step as a picture.
//
// A standalone SVG without script or external font: a lane a rank class (its first rank, and how
// many are alike), a box a pass, filled by module and kind, with the number of its microbatch where
// it fits and the pass and its times as a tooltip; a bar at the foot of a box is higher the later
// its chunk. Schedule, time of all passes, bubble and lower bound stand in the title. It brings its
// own paper, light or dark as the reader prefers.
//
// A picture is bounded: lanes beyond kLanesMax are left out, and of a lane the passes behind the
// first kDrawnPassesMax; a line below says so. Equal arguments give equal bytes. Throws nothing.
#pragma once

#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/simulator.h"
#include "core/wire/plan_text.h"

namespace phalanx::wire {

inline constexpr size_t kLanesMax = 64;
inline constexpr size_t kDrawnPassesMax = 1024;

// `timeline`: of all ranks or of one of each class (schedule::SimulatePlan), planned or measured;
// passes of one rank must not overlap. Times are seconds if every module has an architecture, else
// multiples of one layer's forward pass, as schedule::CostFromShapes counts them.
std::string TimelineSvg(const plan::Plan& plan, const PlanFigures& figures,
                        const std::vector<schedule::TimedInstruction>& timeline);

}  // namespace phalanx::wire

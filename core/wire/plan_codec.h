// core/wire/plan_codec.h: a plan as the message that people and tools read.
//
// One way only: nothing is ever computed from the message. Processes that act on a plan exchange
// document and layout (layout_codec.h) and expand them.
//
// A function of its arguments alone; throws nothing.
#pragma once

#include "core/plan/plan.h"
#include "core/wire/plan_text.h"
#include "phalanx/v1/plan.pb.h"

namespace phalanx::wire {

v1::Plan ToProto(const plan::Plan& plan, const PlanFigures& figures);

}  // namespace phalanx::wire

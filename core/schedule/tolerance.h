// core/schedule/tolerance.h: modules of a job that can lose none of their devices.
//
// Training goes on from where it stands behind most losses: a spare takes over, a replica goes on
// narrower, or without, or the module with lower degrees. Where a module has none of that for any
// of its devices, whoever submits the job is told what a loss comes to instead.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/schedule/losses.h"

namespace phalanx::schedule {

// A sentence for each module of the plan that tolerates no loss, spares counted: "language: the
// loss of any one device sends the job back to its last checkpoint: its state has one home
// (state_copies: 1)". `losses`: LossesOf the plan.
std::vector<std::string> IntoleranceOf(const plan::Plan& plan, const Losses& losses,
                                       const plan::MemoryLimits& limits);

// The same of a job that nobody has placed yet: on one node, whose memory is not known. Empty also
// where it has no plan.
std::vector<std::string> IntoleranceOf(const job::JobSpec& spec);

}  // namespace phalanx::schedule

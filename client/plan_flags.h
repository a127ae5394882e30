// client/plan_flags.h: the flags of `phalanx plan` that no other command has.
#pragma once

#include <CLI/CLI.hpp>

#include "client/commands.h"

namespace phalanx::client {

// `options` must live as long as the command. CLI11 throws.
void AddPlanFlags(CLI::App* plan, PlanOptions& options);

}  // namespace phalanx::client

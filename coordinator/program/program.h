// coordinator/program/program.h: what the program phalanx-coordinator does.
#pragma once

#include "coordinator/runtime/driver.h"

namespace phalanx::coordinator {

// Reads the flags and serves until a signal ends it, or does what else they say. `plan`: how jobs
// are planned; none: as this version does it. Returns the exit code: 0; 1 after a failure; 2 if the
// flags cannot be understood. For main(), while it is the only thread.
int RunCoordinator(int argc, char** argv, PlanFunction plan);

}  // namespace phalanx::coordinator

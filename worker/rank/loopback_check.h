// worker/rank/loopback_check.h: what TCP over the loopback interface does on this node.
#pragma once

#include "core/job/node_check.h"

namespace phalanx::rank {

// Sends 32 MiB from one thread to another, and then single bytes there and back. Takes at most some
// 10 s. What goes wrong is the reason.
job::LoopbackCheck CheckLoopback();

}  // namespace phalanx::rank

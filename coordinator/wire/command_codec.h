// coordinator/wire/command_codec.h: commands as messages of a worker's session.
#pragma once

#include <cstdint>

#include "coordinator/machine/actions.h"
#include "phalanx/v1/worker_service.pb.h"

namespace phalanx::coordinator {

void ToProto(uint64_t command_number, const Command& command, v1::Command* out);

}  // namespace phalanx::coordinator

// coordinator/wire/session_codec.h: the messages of a worker's session as events, commands as
// messages.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/events.h"
#include "phalanx/v1/worker_service.pb.h"

namespace phalanx::coordinator {

inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr int32_t kDevicesMax = 1024;

// Errors: InvalidArgument naming the field; FailedPrecondition for a protocol version not served.
absl::StatusOr<WorkerHello> HelloFromProto(const v1::WorkerHello& hello);

// Any later message of a session; nothing for a kind that this version does not know or that names
// no rank or job.
std::optional<Event> EventFromProto(SessionId session, const v1::OpenSessionRequest& message);

void ToProto(uint64_t command_number, const Command& command, v1::Command* out);

}  // namespace phalanx::coordinator

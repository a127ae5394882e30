// coordinator/wire/session_codec.h: the messages of a worker's session as events; what it is sent
// is in command_codec.h.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "coordinator/machine/events.h"
#include "core/wire/session_terms.h"
#include "phalanx/v1/worker_service.pb.h"

namespace phalanx::coordinator {

// Of workers that are let in: those of this release and of the one before it, so that a coordinator
// is upgraded while they serve, and they behind it one after another.
inline constexpr uint32_t kProtocolVersion = wire::kProtocolVersion;
inline constexpr uint32_t kOldestProtocolVersion = 3;
// Which derivation of layouts (core/plan/derivation.h) is the largest that ranks carry out whose
// worker does not say it: from that protocol version on, and before.
inline constexpr uint32_t kUnsaidDerivationProtocolVersion = 4;
inline constexpr int32_t kUnsaidDerivation = 6;
inline constexpr int32_t kUnsaidDerivationBefore = 5;
inline constexpr int32_t kDevicesMax = wire::kNodeDevicesMax;

// Of one text that a worker or a rank reports: what is longer is cut (core/base/cut_text.h), and of
// more texts than these the first are taken.
inline constexpr size_t kReportedTextBytesMax = 4 << 10;
inline constexpr int kViolationsMax = 100;
inline constexpr int kCorruptNamedMax = 100;
inline constexpr int kPassedOverMax = 16;
inline constexpr int kCaptionsMax = 64;

// Errors: InvalidArgument naming the field; FailedPrecondition for a protocol version not served.
absl::StatusOr<WorkerHello> HelloFromProto(const v1::WorkerHello& hello);

// Any later message of a session; nothing for a kind that this version does not know or that names
// no rank or job. `received`: when it came, by this machine's clock as it is now, which the node's
// clock is compared with.
std::optional<Event> EventFromProto(SessionId session, const v1::OpenSessionRequest& message,
                                    absl::Time received = absl::UnixEpoch());

}  // namespace phalanx::coordinator

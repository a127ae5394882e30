// worker/agent/translate.h: between the session's messages and the machine's events and actions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/job/node_examination.h"
#include "phalanx/v1/rank.pb.h"
#include "phalanx/v1/worker_service.pb.h"
#include "worker/agent/machine/actions.h"
#include "worker/agent/machine/events.h"

namespace phalanx::agent {

// At most `bytes_max` of `text`, with '?' for every byte that is not part of UTF-8: a message with
// anything else in a string field cannot be read at the other end.
std::string Utf8Of(absl::string_view text, size_t bytes_max);

// nullopt: a message of a newer coordinator that asks for nothing.
std::optional<Event> EventOf(SessionNumber session, const v1::OpenSessionResponse& response);

// What the machine hears of a rank's message, in order; nothing of one that asks for memory.
std::vector<Event> EventsOf(ProcessNumber process, const v1::ToDaemon& message);

// `temperatures`: of each device, 0: unknown; empty: of every one. `used_memory`: bytes of each,
// -1: unknown; empty: of every one.
v1::OpenSessionRequest MessageOf(const SendHeartbeat& action, absl::Span<const Preparing> preparing,
                                 absl::Span<const int32_t> temperatures = {},
                                 absl::Span<const int64_t> used_memory = {});
// `sent`: by the clock of the node. `round_trip`: as the message's.
v1::MachineExamination MessageOf(const std::vector<job::Finding>& findings, absl::Time sent,
                                 absl::Duration round_trip);
v1::OpenSessionRequest MessageOf(const SendCommandResult& action);
v1::OpenSessionRequest MessageOf(const SendReport& action);

}  // namespace phalanx::agent

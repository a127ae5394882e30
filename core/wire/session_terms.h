// core/wire/session_terms.h: what a worker and the coordinator of its session have to know alike
// (phalanx/v1/worker_service.proto). Pure.
#pragma once

#include <cstdint>

namespace phalanx::wire {

// Of what they say to each other; one more wherever a coordinator has to know which of two it talks
// to.
inline constexpr uint32_t kProtocolVersion = 4;

// Of one node at most: a worker offers no more, and a coordinator takes no more.
inline constexpr int32_t kNodeDevicesMax = 1024;

}  // namespace phalanx::wire

// tests/fuzz/status/jobs.h: a board with a node and some jobs, one of each kind that a page may
// show.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "coordinator/runtime/board.h"

namespace phalanx::fuzz {

inline constexpr int64_t kDamaged = 1;  // ended, and its entry in the store is damaged
inline constexpr int64_t kEnded = 2;    // with an incident
inline constexpr int64_t kTrains = 3;   // on two devices, with two incidents
inline constexpr int64_t kWaits = 4;
inline constexpr int64_t kUnreadable = 5;  // trains by a document that this release does not read

// In texts that ranks and nodes of these jobs have said: no page may show it as it is.
inline constexpr absl::string_view kMarkup = "<script>alert(1)</script>";

// Called once on a board. A store that does not take them ends the process.
void Fill(coordinator::Board& board);

}  // namespace phalanx::fuzz

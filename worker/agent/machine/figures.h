// worker/agent/machine/figures.h: what a node's daemon counts, for its metrics. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/time.h"
#include "core/job/node_check.h"
#include "worker/agent/machine/xid.h"

namespace phalanx::agent {

struct DeviceFigures {
  bool lost = false;                                     // by an error; it is not used again
  std::array<int64_t, kXidEffects> errors{};             // by their XidEffect
  int32_t last_xid = 0;                                  // 0: there was none
  job::CheckVerdict verdict = job::CheckVerdict::kNone;  // of its last check
  Instant checked = absl::InfinitePast();                // when that had ended
};

// Counts are since the daemon's start.
struct MachineFigures {
  // Processes by state: starting, idle, running, stopping, ending, dead.
  std::map<std::string, int64_t> ranks;
  int64_t rank_starts = 0;  // tried
  // By cause: start_failed; done, its work; told, by the coordinator or as the daemon ends; exited
  // and signal, by itself; else the FailureKind for which the daemon killed it.
  std::map<std::string, int64_t> rank_ends;
  bool session_open = false;
  int64_t sessions = 0;          // that were welcomed
  int64_t session_breaks = 0;    // of these, ended by the other side or by the network
  int64_t session_failures = 0;  // attempts without a welcome
  int64_t heartbeats = 0;
  int64_t heartbeats_late = 0;  // of these, more than an interval after they were due
  int64_t reports_waiting = 0;  // of ranks, not written to this session
  bool draining = false;
  absl::Duration stalled;  // in which the daemon's thread did not run
  std::vector<DeviceFigures> devices;
};

}  // namespace phalanx::agent

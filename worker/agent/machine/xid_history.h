// worker/agent/machine/xid_history.h: whom errors of devices that end processes speak against, once
// they come again. Pure.
//
// One such error (XidEffect::kProcessFault) says nothing of whose fault it is: a program that reads
// what is not its own and a device whose memory is damaged come to the same XID. Where it comes to
// another rank, or another job, on the same device, the device is suspect; where it comes to the
// same rank of a job on two devices, the job's program is; where the same rank meets it on its
// device again, it may be either. Nothing is taken from anybody for it:
// docs/decisions/0063-suspect-devices-are-named.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/time.h"
#include "worker/agent/machine/events.h"

namespace phalanx::agent {

// Of the devices of one node, since its daemon's start. Not thread-safe.
class XidHistory {
 public:
  static constexpr absl::Duration kWindow = absl::Hours(24);
  static constexpr size_t kFaultsMax = 256;  // older ones are forgotten

  enum class Suspect : uint8_t { kNobody, kEither, kDevice, kProgram };

  struct Fault {
    Instant at;
    int32_t device = 0;
    ProcessNumber process;
    JobId job;
    int32_t rank = 0;
  };
  // `at` never falls. A driver may tell of one fault of a process many times: only the first
  // counts.
  Suspect Add(const Fault& fault);

 private:
  std::deque<Fault> faults_;  // by time, one of each process
};

// Behind what a device reported; empty: nobody is suspect.
std::string ToWords(XidHistory::Suspect suspect);

}  // namespace phalanx::agent

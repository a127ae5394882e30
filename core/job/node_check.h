// core/job/node_check.h: what checks of devices that no rank uses find.
//
// A device fails for what is wrong alone: memory that does not keep what was written, arithmetic
// with another result than the known one, an error or silence of the device. Of what is slow it is
// said that it is, with the figure. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/time.h"

namespace phalanx::job {

// Numbered as v1.DeviceCheck.Verdict.
enum class CheckVerdict : uint8_t {
  kNone = 0,
  kPassed = 1,
  kSlow = 2,  // sound, and slower than any such device is to be
  kFailed = 3,
};

// Figures are 0 where they were not measured.
struct DeviceCheck {
  int32_t device = 0;
  CheckVerdict verdict = CheckVerdict::kNone;
  std::string reason;  // why it failed, or what is slow
  Instant time;        // when the check had ended
  int64_t memory_bytes = 0;
  double operations_per_second = 0;  // of matrix products, 2 a multiply-add
  double to_bytes_per_second = 0, from_bytes_per_second = 0;
  double peer_bytes_per_second = 0;  // from `peer`
  int32_t peer = -1;                 // another device of the node; -1: none was idle
  friend bool operator==(const DeviceCheck&, const DeviceCheck&) = default;
};

// Over TCP of the loopback interface; no device fails for it.
struct LoopbackCheck {
  double bytes_per_second = 0;  // 0: not measured
  double round_trip_seconds = 0;
  std::string reason;  // what is slow, or why it was not measured
  friend bool operator==(const LoopbackCheck&, const LoopbackCheck&) = default;
};

struct NodeCheck {
  uint64_t number = 0;               // of those of one daemon process, from 1
  std::vector<DeviceCheck> devices;  // the last check of each that was checked, by device
  LoopbackCheck loopback;
  friend bool operator==(const NodeCheck&, const NodeCheck&) = default;
};

inline constexpr size_t kCheckReasonBytesMax = 512;

// Of a check that has passed: as slow, or as failed where its memory is as good as out of reach,
// with every rate that is to blame. What was not measured, such as copies from a peer where there
// is none, is not judged.
void JudgeRates(bool gpu, DeviceCheck& check);

// "passed", "slow", "failed"; "" for kNone.
absl::string_view ToString(CheckVerdict verdict);
// "16.0 MiB kept, 41.2 GFLOP/s, 9.1 GB/s to it, 8.8 GB/s from it": what was measured.
std::string FiguresOf(const DeviceCheck& check);
// "3.1 GB/s, 21 us there and back".
std::string FiguresOf(const LoopbackCheck& check);

}  // namespace phalanx::job

// core/job/injected_fault.h: faults on demand, as people name them and as every program checks
// them.
//
// A fault without a step and a phase comes about at once, as far as its kind lets it; any other the
// first time that its rank comes to the phase in that step or a later one. A rank keeps one that
// has not come about: the next one takes its place.
//
// Not to be mistaken for job::Fault, which says whose fault a failure is. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/violation.h"

namespace phalanx::job {

// Numbered as v1.FaultKind, which says what each does.
enum class FaultKind : uint8_t {
  kNone = 0,
  kKill = 1,
  kStop = 2,
  kHang = 3,
  kExit = 4,
  kXid = 5,
  kNan = 6,
  kSlow = 7,
  kOom = 8,
  kPartition = 9,
  kMute = 10,
  kThrow = 11,
};
// Numbered as v1.FaultPhase. kAny: wherever the rank is.
enum class FaultPhase : uint8_t {
  kAny = 0,
  kForward = 1,
  kBackward = 2,
  kReduce = 3,
  kMirror = 4,
  kRecord = 5,
  kOptimizer = 6,
  kGather = 7,
  kCheckpoint = 8,
  kRecovery = 9,
};

struct InjectedFault {
  FaultKind kind = FaultKind::kNone;
  int32_t rank = 0;     // of the world
  int64_t at_step = 0;  // 0: whichever comes next
  FaultPhase phase = FaultPhase::kAny;
  int32_t xid = 0;                         // of kXid, from 1 on
  double factor = 0;                       // of kSlow, over 1
  std::optional<absl::Duration> duration;  // nullopt: for good
  bool at_once() const { return at_step == 0 && phase == FaultPhase::kAny; }
  friend bool operator==(const InjectedFault&, const InjectedFault&) = default;
};

// The event by which a rank says that it has come to where its fault is to come about.
inline constexpr char kFaultReached[] = "FaultReached";

inline constexpr int32_t kXidMax = 1'000'000;
inline constexpr double kSlowFactorMax = 1e6;
inline constexpr absl::Duration kFaultDurationMax = absl::Hours(24);

// Lower case, as flags name them; "" for kNone and kAny.
absl::string_view ToString(FaultKind kind);
absl::string_view ToString(FaultPhase phase);
// "kill", "xid:79", "slow:4".
std::string FaultWord(const InjectedFault& fault);
// "stop in backward of step 20 for 2s"; of a step: "of step 20 or later" is meant.
std::string Describe(const InjectedFault& fault);

// What each field is called where violations of it are told: "--at-step", or "fault.at_step".
struct FaultFields {
  absl::string_view rank, fault, at_step, phase, duration;
};
inline constexpr FaultFields kFaultFlags = {"--rank", "--fault", "--at-step", "--phase", "--for"};
inline constexpr FaultFields kFaultMessage = {"fault.rank", "fault.kind", "fault.at_step",
                                              "fault.phase", "fault.duration"};
std::vector<Violation> CheckFault(const InjectedFault& fault, const FaultFields& fields);

// A fault as flags have it; an empty text: the flag is not given.
struct FaultText {
  std::string rank, fault, at_step, phase, duration;
};
// Errors: every violation, by flag (core/base/violation.h).
absl::StatusOr<InjectedFault> ParseFault(const FaultText& text);

}  // namespace phalanx::job

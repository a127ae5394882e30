#include "core/job/injected_fault.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/cut_text.h"
#include "core/job/scalar.h"

namespace phalanx::job {
namespace {

constexpr std::array<absl::string_view, 12> kKinds = {
    "", "kill", "stop", "hang", "exit", "xid", "nan", "slow", "oom", "partition", "mute", "throw"};
constexpr std::array<absl::string_view, 10> kPhases = {
    "",       "forward",   "backward", "reduce",     "mirror",
    "record", "optimizer", "gather",   "checkpoint", "recovery"};
// Of a value that is shown.
constexpr size_t kValueBytesMax = 64;
constexpr absl::string_view kWords =
    "kill, stop, hang, exit, xid:N, nan, slow:FACTOR, oom, partition, mute or throw";

template <typename T, size_t kCount>
std::optional<T> Named(absl::string_view name, const std::array<absl::string_view, kCount>& names) {
  const auto found = std::find(names.begin() + 1, names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<T>(found - names.begin());
}

bool Lasts(FaultKind kind) {
  return kind == FaultKind::kStop || kind == FaultKind::kHang || kind == FaultKind::kSlow ||
         kind == FaultKind::kPartition;
}

// Behind these a step is decided, and what is no number any more would be kept.
bool MaySpoil(FaultPhase phase) {
  return phase == FaultPhase::kAny || phase == FaultPhase::kForward ||
         phase == FaultPhase::kBackward || phase == FaultPhase::kReduce ||
         phase == FaultPhase::kRecord;
}

std::string ValueOf(const InjectedFault& fault) {
  const std::string word = FaultWord(fault);
  return word.empty() ? absl::StrCat(static_cast<int>(fault.kind)) : word;
}

}  // namespace

absl::string_view ToString(FaultKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kKinds.size() ? kKinds[index] : "";
}

absl::string_view ToString(FaultPhase phase) {
  const auto index = static_cast<size_t>(phase);
  return index < kPhases.size() ? kPhases[index] : "";
}

std::string FaultWord(const InjectedFault& fault) {
  std::string word(ToString(fault.kind));
  if (fault.kind == FaultKind::kXid) absl::StrAppend(&word, ":", fault.xid);
  if (fault.kind == FaultKind::kSlow) absl::StrAppend(&word, ":", FormatNumber(fault.factor));
  return word;
}

std::string Describe(const InjectedFault& fault) {
  std::string text = FaultWord(fault);
  if (fault.phase != FaultPhase::kAny) absl::StrAppend(&text, " in ", ToString(fault.phase));
  if (fault.at_step > 0) {
    absl::StrAppend(&text, fault.phase == FaultPhase::kAny ? " in step " : " of step ",
                    fault.at_step);
  }
  if (fault.duration.has_value())
    absl::StrAppend(&text, " for ", job::FormatDuration(*fault.duration));
  return text;
}

std::vector<Violation> CheckFault(const InjectedFault& fault, const FaultFields& fields) {
  std::vector<Violation> violations;
  const auto add = [&violations](absl::string_view field, std::string value, std::string rule) {
    violations.push_back({.field = std::string(field), .value = std::move(value), .rule = rule});
  };
  const FaultKind kind = fault.kind;
  if (fault.rank < 0) add(fields.rank, absl::StrCat(fault.rank), "must be 0 or more");
  if (ToString(kind).empty()) add(fields.fault, ValueOf(fault), absl::StrCat("must be ", kWords));
  if (kind == FaultKind::kXid && (fault.xid < 1 || fault.xid > kXidMax))
    add(fields.fault, ValueOf(fault), absl::StrCat("the number must be in [1, ", kXidMax, "]"));
  // Written so that a factor which is no number breaks it.
  if (kind == FaultKind::kSlow && !(fault.factor > 1 && fault.factor <= kSlowFactorMax)) {
    add(fields.fault, ValueOf(fault),
        absl::StrCat("the factor must be over 1 and at most ", FormatNumber(kSlowFactorMax)));
  }
  if (fault.at_step < 0) add(fields.at_step, absl::StrCat(fault.at_step), "must be 1 or more");
  const std::string phase(ToString(fault.phase));
  if (fault.phase != FaultPhase::kAny && phase.empty()) {
    add(fields.phase, absl::StrCat(static_cast<int>(fault.phase)),
        absl::StrCat("must be one of ", absl::StrJoin(kPhases.begin() + 1, kPhases.end(), ", ")));
  } else if (kind == FaultKind::kNan && !MaySpoil(fault.phase)) {
    add(fields.phase, phase,
        "nan is of what a step is decided by and takes forward, backward, reduce or record alone");
  } else if (kind == FaultKind::kMute &&
             (fault.phase == FaultPhase::kCheckpoint || fault.phase == FaultPhase::kRecovery)) {
    add(fields.phase, phase, "mute is of a message of a step and takes a phase of one alone");
  } else if (kind == FaultKind::kThrow && fault.phase == FaultPhase::kCheckpoint) {
    add(fields.phase, phase, "throw is of the thread that trains, which writes no checkpoint");
  }
  if (!fault.duration.has_value()) return violations;
  if (!(*fault.duration > absl::ZeroDuration() && *fault.duration <= kFaultDurationMax)) {
    add(fields.duration, job::FormatDuration(*fault.duration),
        absl::StrCat("must be over 0 and at most ", job::FormatDuration(kFaultDurationMax)));
  }
  if (!ToString(kind).empty() && !Lasts(kind)) {
    add(fields.duration, job::FormatDuration(*fault.duration),
        absl::StrCat(ToString(kind), " is for good; only stop, hang, slow and partition end"));
  }
  return violations;
}

absl::StatusOr<InjectedFault> ParseFault(const FaultText& text) {
  InjectedFault fault;
  std::vector<Violation> violations;
  const auto add = [&violations](absl::string_view field, const std::string& value,
                                 std::string rule) {
    violations.push_back({.field = std::string(field),
                          .value = CutText(value, kValueBytesMax),
                          .rule = std::move(rule)});
  };
  const FaultFields& flags = kFaultFlags;
  if (const auto rank = ParseInteger(text.rank); rank && *rank >= 0 && *rank <= INT32_MAX) {
    fault.rank = static_cast<int32_t>(*rank);
  } else {
    add(flags.rank, text.rank, "must be a rank such as 3");
  }
  absl::string_view word = text.fault, number;
  const size_t colon = word.find(':');
  const bool numbered = colon != absl::string_view::npos;
  if (numbered) number = word.substr(colon + 1);
  fault.kind = Named<FaultKind>(word.substr(0, colon), kKinds).value_or(FaultKind::kNone);
  const bool takes_number = fault.kind == FaultKind::kXid || fault.kind == FaultKind::kSlow;
  if (fault.kind == FaultKind::kXid) {
    const auto xid = ParseInteger(number);
    fault.xid = xid && *xid >= 0 && *xid <= kXidMax ? static_cast<int32_t>(*xid) : 0;
  } else if (fault.kind == FaultKind::kSlow) {
    fault.factor = ParseNumber(number).value_or(0);
  }
  const bool known = fault.kind != FaultKind::kNone && takes_number == numbered;
  if (!known) add(flags.fault, text.fault, absl::StrCat("must be ", kWords));
  if (!text.at_step.empty()) {
    const auto step = ParseInteger(text.at_step);
    if (step && *step >= 1) fault.at_step = *step;
    if (fault.at_step == 0) add(flags.at_step, text.at_step, "must be a step from 1 on");
  }
  if (!text.phase.empty()) {
    const auto phase = Named<FaultPhase>(text.phase, kPhases);
    if (phase.has_value()) {
      fault.phase = *phase;
    } else {
      add(flags.phase, text.phase,
          absl::StrCat("must be one of ", absl::StrJoin(kPhases.begin() + 1, kPhases.end(), ", ")));
    }
  }
  if (!text.duration.empty()) {
    fault.duration = ParseDuration(text.duration);
    if (!fault.duration.has_value())
      add(flags.duration, text.duration, "must be a duration such as 2s or 500ms");
  }
  // What was written is shown as it was.
  for (const Violation& violation : CheckFault(fault, flags)) {
    if (violation.field == flags.fault) {
      if (known) add(flags.fault, text.fault, violation.rule);
    } else if (violation.field == flags.duration) {
      add(flags.duration, text.duration, violation.rule);
    } else {
      violations.push_back(violation);
    }
  }
  if (!violations.empty()) return ViolationsStatus(violations);
  return fault;
}

}  // namespace phalanx::job

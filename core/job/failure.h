// core/job/failure.h: why jobs fail: one closed list, the same on the wire, in the journal, in
// metrics and in docs/failures.md, which a test compares with it.
//
// Each kind says whether the same job may well go through when it is tried again, whose fault it
// is, and what a person does next. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace phalanx::job {

// Numbered as v1.FailureKind. A number is never used again.
enum class FailureKind : uint8_t {
  kNodeLost = 1,
  kNodeUnreachable = 2,
  kNodeStopped = 3,
  kRanksLost = 4,
  kRankKilled = 5,
  kRankCrashed = 6,
  kRankExited = 7,
  kRankError = 8,
  kPeerLost = 9,
  kStartFailed = 10,
  kStartTimeout = 11,
  kPrepareFailed = 12,
  kPlanInvalid = 13,
  kDataInvalid = 14,
  kDataCorrupt = 15,
  kDataUnavailable = 16,
  kOutputUnavailable = 17,
  kOutOfMemory = 18,
  kNonFinite = 19,
  kDeviceFailed = 20,
  kVersionMismatch = 21,
  kPrepareTimeout = 22,
  kCheckpointInvalid = 23,
  kCheckpointUnavailable = 24,
  kTimeLimit = 25,
  kRankHung = 26,
  kStateLost = 27,
  kNoProgress = 28,
};

enum class Fault : uint8_t {
  kDevice,
  kNode,
  kNetwork,
  kStorage,
  kData,
  kProgram,
  kUser,
  kOperator
};

struct FailureTraits {
  FailureKind kind;
  absl::string_view name;  // CamelCase
  bool retryable;
  Fault fault;
  absl::string_view meaning;  // what was seen
  absl::string_view next;     // what a person does
};

// Of every kind, in the order of their numbers.
absl::Span<const FailureTraits> AllFailures();
const FailureTraits& TraitsOf(FailureKind kind);
// What a person does next: as the kind says it, or better where a signal ended the rank.
absl::string_view NextAfter(FailureKind kind, int32_t signal);
// The same of a job that trains on, and need not be submitted again.
std::string NextWhereItTrainsOn(FailureKind kind, int32_t signal);

absl::string_view ToString(FailureKind kind);
absl::string_view ToString(Fault fault);
std::optional<FailureKind> ParseFailureKind(absl::string_view name);
// Nothing for a number that is none.
std::optional<FailureKind> FailureKindOf(int32_t number);

// docs/failures.md.
std::string FailureReference();

// Lets an error say what kind of failure it is, which its maker knows. Annotate keeps it.
absl::Status WithKind(FailureKind kind, absl::Status status);
std::optional<FailureKind> KindIn(const absl::Status& status);

// The kind of failure that a rank which ends with `status` reports: the one that it carries; else
// PeerLost if it accuses a rank or is Unavailable or Aborted, as transports say it; else RankError.
FailureKind KindOf(const absl::Status& status);

}  // namespace phalanx::job

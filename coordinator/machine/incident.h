// coordinator/machine/incident.h: what befell a job that trains, and how it went on from it.
//
// An incident begins where ranks are lost, or come back, and ends when a step behind it is decided
// and all optimizer state has its homes again. Ranks that are lost on the way belong to it. The
// coordinator gathers it while it happens and stores it as it grows (IncidentNoted), so a
// coordinator that restarts goes on with what was known.
//
// Phases overlap. Their times count in microseconds from `detected`, the first evidence.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/machine/records.h"
#include "core/plan/layout_change.h"

namespace phalanx::coordinator {

struct Incident {
  enum class Kind : uint8_t { kLoss, kReturn };
  // By the rank of the evidence: certain is what a process's parent, a daemon's session, a driver
  // or the rank itself has said; likely is what others said about it, and silence.
  enum class Confidence : uint8_t { kCertain, kLikely };
  enum class Phase : uint8_t {
    kDetected,            // from the first evidence to the verdict
    kPlanned,             // from the verdict until the next layout is there
    kSurvivorsQuiet,      // until all who are left have said where their state stands
    kCommunicatorsReady,  // from the assignment until the slowest rank is connected
    kStateMoved,          // from when the step is known until the last rank has its state
    kResumed,             // from the first rank that has its state until all are ready
    kFirstStep,           // until a step behind the incident is decided
    kSafeAgain,           // from when state moves until every share has its homes
  };
  static constexpr size_t kPhases = 8;
  struct Span {
    std::optional<int64_t> begin, end;  // microseconds since `detected`
    int32_t slowest = -1;               // the rank that ended it; -1: no single one
    friend bool operator==(const Span&, const Span&) = default;
  };

  int64_t number = 0;  // from 1 within the job
  Kind kind = Kind::kLoss;
  Epoch from, to;  // the epoch that it ended, and the last one that it took
  Instant detected;
  FailureCause cause;  // of a loss: the first; its message in one line
  job::DeviceKind device_kind = job::DeviceKind::kCpu;
  int32_t device = -1;  // of cause.rank on its node; -1: no rank is to blame
  Confidence confidence = Confidence::kCertain;
  std::vector<std::string> evidence;    // as it came, at most kEvidenceMax lines
  std::vector<int32_t> lost, returned;  // ranks
  std::vector<plan::LayoutChange> changes;
  int64_t decided_step = 0;  // behind which training went on
  int64_t steps_redone = 0;  // right behind it, that had been begun or done before
  std::array<Span, kPhases> phases;
  bool standby = false;  // communicators of `to` were made before it
  std::string not_safe;  // why kSafeAgain has no end, and gets none; empty: it has, or will

  Span& operator[](Phase phase) { return phases[static_cast<size_t>(phase)]; }
  const Span& operator[](Phase phase) const { return phases[static_cast<size_t>(phase)]; }
  bool Has(Phase phase) const { return (*this)[phase].end.has_value(); }
  // Nothing more is to be known of it.
  bool IsClosed() const {
    return Has(Phase::kFirstStep) && (Has(Phase::kSafeAgain) || !not_safe.empty());
  }
  friend bool operator==(const Incident&, const Incident&) = default;
};

inline constexpr size_t kEvidenceMax = 16;
// Of a job: the last ones are kept.
inline constexpr size_t kIncidentsMax = 64;

// "detected", ... "safe_again".
absl::string_view ToString(Incident::Phase phase);
std::optional<Incident::Phase> ParseIncidentPhase(absl::string_view name);
absl::string_view ToString(Incident::Kind kind);              // "loss", "return"
absl::string_view ToString(Incident::Confidence confidence);  // "certain", "likely"

// Of a process that has died, as long as nobody has told how it ended.
bool IsDeathAlone(const FailureCause& cause);

// `accused`: ranks have said something about others that fits.
Incident::Confidence ConfidenceOf(const FailureCause& cause, bool accused);

// Takes a line of evidence unless it is there, or there is no room for it.
void AddEvidence(Incident& incident, absl::string_view line);

// A phase that has no begin yet begins.
void BeginPhase(Incident& incident, Incident::Phase phase, Instant at);
// A phase ends, not before it began; `slowest`: the rank that it waited for.
void EndPhase(Incident& incident, Incident::Phase phase, Instant at, int32_t slowest = -1);
// The same, where it may have ended: the later end stays.
void ExtendPhase(Incident& incident, Incident::Phase phase, Instant at, int32_t slowest);
// More ranks are lost on the way: what comes behind the verdict is still to come.
void Reopen(Incident& incident);

// What happened and how long it took, in one line: "rank 3 (node b, GPU 1) died: XID 79; step 181
// redone, vision dp 4 -> 3; back after 0.9 s". "not back yet" instead of the last while it is not
// back.
std::string Summary(const Incident& incident);
// The verdict in one line: cause, first failing rank and device, evidence, confidence, next step.
// Empty for a return.
std::string Verdict(const Incident& incident);

// Puts it in the place of the one of its number, or behind the others; at most kIncidentsMax stay.
void Keep(std::vector<IncidentPtr>& incidents, IncidentPtr incident);

}  // namespace phalanx::coordinator

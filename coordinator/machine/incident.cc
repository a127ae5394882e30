#include "coordinator/machine/incident.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/cut_text.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using Phase = Incident::Phase;

constexpr size_t kLineBytesMax = 512;
constexpr size_t kRanksNamedMax = 16;

constexpr absl::string_view kPhaseNames[] = {
    "detected",    "planned", "survivors_quiet", "communicators_ready",
    "state_moved", "resumed", "first_step",      "safe_again"};
static_assert(std::size(kPhaseNames) == Incident::kPhases);

std::string FirstLine(absl::string_view text) {
  return CutText(std::string(text.substr(0, text.find('\n'))), kLineBytesMax);
}

int64_t SinceDetected(const Incident& incident, Instant at) {
  return std::max<int64_t>(0, absl::ToInt64Microseconds(at - incident.detected));
}

std::string RanksText(const std::vector<int32_t>& ranks) {
  const size_t named = std::min(ranks.size(), kRanksNamedMax);
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "),
      named < ranks.size() ? absl::StrCat(" and ", ranks.size() - named, " others") : "");
}

// "rank 3 (node b, GPU 1)".
std::string Subject(const Incident& incident) {
  const FailureCause& cause = incident.cause;
  std::string where = cause.node.empty() ? "" : absl::StrCat("node ", cause.node);
  if (incident.device >= 0) {
    absl::StrAppend(&where, where.empty() ? "" : ", ",
                    incident.device_kind == job::DeviceKind::kGpu ? "GPU " : "slot ",
                    incident.device);
  }
  return absl::StrCat("rank ", cause.rank, where.empty() ? "" : absl::StrCat(" (", where, ")"));
}

bool IsOfRank(FailureKind kind) {
  return kind != FailureKind::kNodeLost && kind != FailureKind::kNodeUnreachable &&
         kind != FailureKind::kNodeStopped && kind != FailureKind::kRanksLost &&
         kind != FailureKind::kStartFailed && kind != FailureKind::kStateLost;
}

// "rank 3 (node b, GPU 1) died: XID 79", "node b is lost: its session broke".
std::string WhatHappened(const Incident& incident) {
  const FailureCause& cause = incident.cause;
  if (incident.kind == Incident::Kind::kReturn)
    return absl::StrCat(RanksText(incident.returned), " came back");
  const std::string message = FirstLine(cause.message);
  if (cause.rank < 0 || !IsOfRank(cause.kind))
    return message.empty() ? std::string(job::ToString(cause.kind)) : message;
  const std::string subject = Subject(incident);
  absl::string_view rest = message;
  const std::string on_node = absl::StrCat("rank ", cause.rank, " on node ", cause.node, " ");
  if (absl::ConsumePrefix(&rest, on_node)) return absl::StrCat(subject, " ", rest);
  const std::string of_rank = absl::StrCat("rank ", cause.rank);
  if (absl::StartsWith(message, absl::StrCat(of_rank, " "))) {
    absl::ConsumePrefix(&rest, of_rank);
    return absl::StrCat(subject, rest);
  }
  absl::ConsumePrefix(&rest, absl::StrCat(of_rank, ": "));
  const absl::string_view verb = cause.kind == FailureKind::kDeviceFailed ? " died: "
                                 : cause.kind == FailureKind::kPeerLost   ? " was lost: "
                                                                          : " failed: ";
  return absl::StrCat(subject, verb, rest.empty() ? job::ToString(cause.kind) : rest);
}

// "step 181 redone", "steps 161 to 181 redone", or "... to be redone", or, where nobody will,
// "... not redone"; empty: none.
std::string RedoneText(const Incident& incident, bool is_back) {
  if (incident.steps_redone <= 0) return "";
  const int64_t first = incident.decided_step + 1, last = first + incident.steps_redone - 1;
  const std::string steps =
      first == last ? absl::StrCat("step ", first) : absl::StrCat("steps ", first, " to ", last);
  return absl::StrCat(steps, is_back                     ? " redone"
                             : incident.not_safe.empty() ? " to be redone"
                                                         : " not redone");
}

std::string SecondsText(int64_t microseconds) {
  const double seconds = static_cast<double>(microseconds) / 1e6;
  const int decimals = seconds < 0.1 ? 3 : seconds < 10 ? 1 : 0;
  return absl::StrFormat("%.*f s", decimals, seconds);
}

}  // namespace

absl::string_view ToString(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

std::optional<Phase> ParseIncidentPhase(absl::string_view name) {
  for (size_t i = 0; i < Incident::kPhases; ++i) {
    if (kPhaseNames[i] == name) return static_cast<Phase>(i);
  }
  return std::nullopt;
}

absl::string_view ToString(Incident::Kind kind) {
  return kind == Incident::Kind::kReturn ? "return" : "loss";
}

absl::string_view ToString(Incident::Confidence confidence) {
  return confidence == Incident::Confidence::kLikely ? "likely" : "certain";
}

bool IsDeathAlone(const FailureCause& cause) {
  return cause.kind == FailureKind::kRankKilled && cause.signal == 0 && cause.exit_code == 0;
}

Incident::Confidence ConfidenceOf(const FailureCause& cause, bool accused) {
  if (IsDeathAlone(cause)) return Incident::Confidence::kLikely;
  switch (cause.kind) {
    case FailureKind::kPeerLost:
    case FailureKind::kNodeUnreachable:
    case FailureKind::kRankHung:
    case FailureKind::kStartTimeout:
    case FailureKind::kNoProgress:
      return Incident::Confidence::kLikely;
    case FailureKind::kNodeLost:  // its silence, or a broken session and broken connections
                                  // together
      return accused ? Incident::Confidence::kCertain : Incident::Confidence::kLikely;
    default:
      return Incident::Confidence::kCertain;
  }
}

void AddEvidence(Incident& incident, absl::string_view line) {
  std::vector<std::string>& all = incident.evidence;
  std::string text = FirstLine(line);
  if (text.empty() || all.size() >= kEvidenceMax) return;
  if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(std::move(text));
}

void BeginPhase(Incident& incident, Phase phase, Instant at) {
  Incident::Span& span = incident[phase];
  if (!span.begin.has_value()) span.begin = SinceDetected(incident, at);
}

void EndPhase(Incident& incident, Phase phase, Instant at, int32_t slowest) {
  BeginPhase(incident, phase, at);
  Incident::Span& span = incident[phase];
  span.end = std::max(*span.begin, SinceDetected(incident, at));
  span.slowest = slowest;
}

void ExtendPhase(Incident& incident, Phase phase, Instant at, int32_t slowest) {
  const Incident::Span& span = incident[phase];
  if (!span.end.has_value() || *span.end < SinceDetected(incident, at))
    EndPhase(incident, phase, at, slowest);
}

void Reopen(Incident& incident) {
  for (const Phase phase : {Phase::kPlanned, Phase::kSurvivorsQuiet}) {
    incident[phase].end.reset();
    incident[phase].slowest = -1;
  }
  for (const Phase phase : {Phase::kCommunicatorsReady, Phase::kStateMoved, Phase::kResumed,
                            Phase::kFirstStep, Phase::kSafeAgain}) {
    incident[phase] = {};
  }
}

std::string Summary(const Incident& incident) {
  const std::optional<int64_t>& resumed = incident[Phase::kResumed].end;
  const std::optional<int64_t>& back =
      resumed.has_value() ? resumed : incident[Phase::kFirstStep].end;
  std::vector<std::string> middle;
  if (std::string redone = RedoneText(incident, back.has_value()); !redone.empty())
    middle.push_back(std::move(redone));
  // Ranks that are both were lost, and a spare has taken over.
  std::vector<int32_t> lost, spared, returned;
  std::set_difference(incident.lost.begin(), incident.lost.end(), incident.returned.begin(),
                      incident.returned.end(), std::back_inserter(lost));
  std::set_intersection(incident.lost.begin(), incident.lost.end(), incident.returned.begin(),
                        incident.returned.end(), std::back_inserter(spared));
  std::set_difference(incident.returned.begin(), incident.returned.end(), incident.lost.begin(),
                      incident.lost.end(), std::back_inserter(returned));
  const bool told = lost.size() == 1 && lost.front() == incident.cause.rank;
  if (!lost.empty() && !told) middle.push_back(absl::StrCat("without ", RanksText(lost)));
  if (!spared.empty())
    middle.push_back(absl::StrCat(spared.size() == 1 ? "a spare takes" : "spares take", " over ",
                                  RanksText(spared)));
  if (!returned.empty() && incident.kind == Incident::Kind::kLoss) {
    const absl::string_view verb = returned.size() == 1 ? " is to come back" : " are to come back";
    middle.push_back(absl::StrCat(RanksText(returned), back.has_value() ? " came back" : verb));
  }
  for (std::string& words : plan::ToWords(incident.changes)) middle.push_back(std::move(words));
  std::string text = WhatHappened(incident);
  if (!middle.empty()) absl::StrAppend(&text, "; ", absl::StrJoin(middle, ", "));
  if (back.has_value()) {
    // Of one that resumed while there was no coordinator only that is known.
    absl::StrAppend(&text, resumed.has_value() ? "; back after " : "; its first step after ",
                    SecondsText(*back));
    const Incident::Span& connected = incident[Phase::kCommunicatorsReady];
    if (incident.standby && connected.begin.has_value() && connected.end.has_value()) {
      absl::StrAppend(&text, ", standby communicators after ",
                      SecondsText(*connected.end - *connected.begin));
    }
    const std::optional<int64_t>& paused = incident[Phase::kSurvivorsQuiet].begin;
    if (incident.kind == Incident::Kind::kReturn && paused.has_value())
      absl::StrAppend(&text, ", training paused for ", SecondsText(*back - *paused));
    return text;
  }
  return absl::StrCat(text, incident.not_safe.empty() ? "; not back yet" : "; not gone on from");
}

std::string Verdict(const Incident& incident) {
  if (incident.kind == Incident::Kind::kReturn) return "";
  const FailureCause& cause = incident.cause;
  std::string text = absl::StrCat(job::ToString(cause.kind), " (", ToString(incident.confidence),
                                  "): ", WhatHappened(incident));
  if (!IsOfRank(cause.kind) && cause.rank >= 0)
    absl::StrAppend(&text, "; first ", Subject(incident));
  if (!incident.evidence.empty())
    absl::StrAppend(&text, "; evidence: ", absl::StrJoin(incident.evidence, " | "));
  return absl::StrCat(text, "; what to do: ", job::NextWhereItTrainsOn(cause.kind, cause.signal));
}

void Keep(std::vector<IncidentPtr>& incidents, IncidentPtr incident) {
  const auto known =
      std::find_if(incidents.begin(), incidents.end(),
                   [&](const IncidentPtr& other) { return other->number == incident->number; });
  if (known != incidents.end()) {
    *known = std::move(incident);
    return;
  }
  incidents.push_back(std::move(incident));
  if (incidents.size() > kIncidentsMax) incidents.erase(incidents.begin());
}

}  // namespace phalanx::coordinator

#include "core/wire/examination_codec.h"

#include <algorithm>
#include <cstdint>

#include "core/base/cut_text.h"
#include "core/base/terminal_text.h"

namespace phalanx::wire {
namespace {

using Verdict = job::Finding::Verdict;

constexpr absl::Duration kClockApartMax = absl::Hours(24 * 365 * 100);
constexpr double kRoundTripSecondsMax = 1e7;

absl::Time ToTime(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

bool IsKnown(v1::MachineFinding::Verdict verdict) {
  return verdict >= v1::MachineFinding::VERDICT_OK &&
         verdict <= v1::MachineFinding::VERDICT_PROBLEM;
}

// On one line, with nothing in it that a terminal would obey.
std::string Sentence(const std::string& text, size_t bytes_max) {
  return KeptText(LineText(KeptText(text, bytes_max)), bytes_max);
}

}  // namespace

void ToProto(const std::vector<job::Finding>& findings, FindingMessages* out) {
  for (const job::Finding& finding : findings) {
    if (out->size() == job::kFindingsMax) return;
    v1::MachineFinding* to = out->Add();
    to->set_check(finding.check);
    to->set_verdict(
        static_cast<v1::MachineFinding::Verdict>(static_cast<uint8_t>(finding.verdict) + 1));
    to->set_found(KeptText(finding.found, job::kFoundBytesMax));
    to->set_next(KeptText(finding.next, job::kNextBytesMax));
  }
}

std::vector<job::Finding> FromProto(const FindingMessages& findings) {
  std::vector<job::Finding> from;
  for (int i = 0; i < std::min(findings.size(), job::kFindingsMax); ++i) {
    const v1::MachineFinding& finding = findings.Get(i);
    if (!job::IsCheckName(finding.check()) || !IsKnown(finding.verdict())) continue;
    const bool twice = std::any_of(from.begin(), from.end(), [&finding](const job::Finding& other) {
      return other.check == finding.check();
    });
    if (twice) continue;
    from.push_back({.check = finding.check(),
                    .verdict = static_cast<Verdict>(finding.verdict() - 1),
                    .found = Sentence(finding.found(), job::kFoundBytesMax),
                    .next = Sentence(finding.next(), job::kNextBytesMax)});
  }
  return from;
}

job::NodeExamination FromProto(const v1::MachineExamination& examination, absl::Time received) {
  const absl::Duration ahead =
      std::clamp(ToTime(examination.sent()) - received, -kClockApartMax, kClockApartMax);
  const double round_trip = examination.round_trip_seconds();
  const bool known = round_trip >= 0 && round_trip < kRoundTripSecondsMax;
  return {.findings = FromProto(examination.findings()),
          .received = received,
          .ahead_min = ahead,
          .ahead_max = ahead + absl::Seconds(known ? round_trip : 0)};
}

void ToProto(const job::NodeExamination& examination, v1::NodeExamination* out) {
  ToProto(examination.findings, out->mutable_findings());
  const int64_t nanos = absl::ToUnixNanos(examination.received);
  out->mutable_received()->set_seconds(nanos / 1'000'000'000);
  out->mutable_received()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  out->set_clock_ahead_min_seconds(absl::ToDoubleSeconds(examination.ahead_min));
  out->set_clock_ahead_max_seconds(absl::ToDoubleSeconds(examination.ahead_max));
}

job::NodeExamination FromProto(const v1::NodeExamination& examination) {
  return {.findings = FromProto(examination.findings()),
          .received = ToTime(examination.received()),
          .ahead_min = absl::Seconds(examination.clock_ahead_min_seconds()),
          .ahead_max = absl::Seconds(examination.clock_ahead_max_seconds())};
}

std::string KeptText(const std::string& text, size_t bytes_max) {
  constexpr size_t kNoteBytesMax = 64;  // of what CutText adds
  return text.size() <= bytes_max ? text : CutText(text, bytes_max - kNoteBytesMax);
}

}  // namespace phalanx::wire

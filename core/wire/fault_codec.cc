#include "core/wire/fault_codec.h"

#include <cstdint>

#include "absl/time/time.h"

namespace phalanx::wire {
namespace {

static_assert(static_cast<int>(job::FaultKind::kThrow) == v1::FAULT_KIND_THROW &&
              v1::FaultKind_MAX == v1::FAULT_KIND_THROW);
static_assert(static_cast<int>(job::FaultPhase::kRecovery) == v1::FAULT_PHASE_RECOVERY &&
              v1::FaultPhase_MAX == v1::FAULT_PHASE_RECOVERY);

// A number that is none of the enumeration stays none.
template <typename T>
T Numbered(int value) {
  return static_cast<T>(value < 0 || value > UINT8_MAX ? UINT8_MAX : value);
}

}  // namespace

void ToProto(const job::InjectedFault& fault, v1::Fault* out) {
  out->set_kind(static_cast<v1::FaultKind>(fault.kind));
  out->set_rank(fault.rank);
  out->set_at_step(fault.at_step);
  out->set_phase(static_cast<v1::FaultPhase>(fault.phase));
  out->set_xid(fault.xid);
  out->set_factor(fault.factor);
  if (!fault.duration.has_value()) return;
  absl::Duration rest;
  const int64_t seconds = absl::IDivDuration(*fault.duration, absl::Seconds(1), &rest);
  out->mutable_duration()->set_seconds(seconds);
  out->mutable_duration()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

job::InjectedFault FromProto(const v1::Fault& fault) {
  job::InjectedFault out{.kind = Numbered<job::FaultKind>(fault.kind()),
                         .rank = fault.rank(),
                         .at_step = fault.at_step(),
                         .phase = Numbered<job::FaultPhase>(fault.phase()),
                         .xid = fault.xid(),
                         .factor = fault.factor()};
  if (fault.has_duration()) {
    out.duration =
        absl::Seconds(fault.duration().seconds()) + absl::Nanoseconds(fault.duration().nanos());
  }
  return out;
}

}  // namespace phalanx::wire

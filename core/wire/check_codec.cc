#include "core/wire/check_codec.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/wire/examination_codec.h"

namespace phalanx::wire {
namespace {

constexpr double kRateMax = 1e18;

std::string Kept(const std::string& reason) { return KeptText(reason, job::kCheckReasonBytesMax); }

double Rate(double figure) { return figure > 0 && figure < kRateMax ? figure : 0; }

}  // namespace

void ToProto(const job::DeviceCheck& check, v1::DeviceCheck* out) {
  out->set_device(check.device);
  out->set_verdict(static_cast<v1::DeviceCheck::Verdict>(check.verdict));
  out->set_reason(check.reason);
  const int64_t nanos = absl::ToUnixNanos(check.time);
  out->mutable_time()->set_seconds(nanos / 1'000'000'000);
  out->mutable_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  out->set_memory_bytes(check.memory_bytes);
  out->set_operations_per_second(check.operations_per_second);
  out->set_to_bytes_per_second(check.to_bytes_per_second);
  out->set_from_bytes_per_second(check.from_bytes_per_second);
  if (check.peer < 0) return;
  out->set_peer(check.peer);
  out->set_peer_bytes_per_second(check.peer_bytes_per_second);
}

void ToProto(const job::LoopbackCheck& check, v1::LoopbackCheck* out) {
  out->set_bytes_per_second(check.bytes_per_second);
  out->set_round_trip_seconds(check.round_trip_seconds);
  out->set_reason(check.reason);
}

void ToProto(const job::NodeCheck& check, v1::NodeCheck* out) {
  out->set_number(check.number);
  for (const job::DeviceCheck& device : check.devices) ToProto(device, out->add_devices());
  ToProto(check.loopback, out->mutable_loopback());
}

job::DeviceCheck FromProto(const v1::DeviceCheck& check) {
  job::DeviceCheck from{.device = check.device(),
                        .reason = Kept(check.reason()),
                        .time = absl::FromUnixSeconds(check.time().seconds()) +
                                absl::Nanoseconds(check.time().nanos()),
                        .memory_bytes = std::max<int64_t>(check.memory_bytes(), 0),
                        .operations_per_second = Rate(check.operations_per_second()),
                        .to_bytes_per_second = Rate(check.to_bytes_per_second()),
                        .from_bytes_per_second = Rate(check.from_bytes_per_second()),
                        .peer_bytes_per_second = Rate(check.peer_bytes_per_second()),
                        .peer = check.has_peer() ? check.peer() : -1};
  switch (check.verdict()) {
    case v1::DeviceCheck::VERDICT_PASSED:
      from.verdict = job::CheckVerdict::kPassed;
      break;
    case v1::DeviceCheck::VERDICT_SLOW:
      from.verdict = job::CheckVerdict::kSlow;
      break;
    case v1::DeviceCheck::VERDICT_FAILED:
      from.verdict = job::CheckVerdict::kFailed;
      break;
    default:
      break;
  }
  return from;
}

job::LoopbackCheck FromProto(const v1::LoopbackCheck& check) {
  return {.bytes_per_second = Rate(check.bytes_per_second()),
          .round_trip_seconds = Rate(check.round_trip_seconds()),
          .reason = Kept(check.reason())};
}

job::NodeCheck FromProto(const v1::NodeCheck& check, int devices_max) {
  job::NodeCheck from{.number = check.number(), .loopback = FromProto(check.loopback())};
  for (int i = 0; i < std::min(check.devices_size(), devices_max); ++i)
    from.devices.push_back(FromProto(check.devices(i)));
  return from;
}

}  // namespace phalanx::wire
